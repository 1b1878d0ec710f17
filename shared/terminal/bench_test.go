package terminal_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Screens of 40 rows: plain is styled as an agent's screen is, in a few rows;
// dense has five runs of style in each.
const (
	plain = `i=0; while [ $i -lt 40 ]; do if [ $((i%4)) = 0 ]; then printf '\033[1;3%dmrow %d\033[0m \033[2mdim text\033[0m' $((i%8)) $i; else printf 'row %d and plain text to the right of it' $i; fi; i=$((i+1)); [ $i -lt 40 ] && echo; done; exec cat`
	dense = `i=0; while [ $i -lt 40 ]; do printf '\033[1;3%dmrow %d\033[0m \033[2mdim\033[0m \033[48;5;%dm background \033[0m and plain text to the right' $((i%8)) $i $i; i=$((i+1)); [ $i -lt 40 ] && echo; done; exec cat`
)

// BenchmarkSurvey compares one listing with one capture of all panes to the two
// bare tmux calls that do the same without style and proof, in turns, so that a
// busy machine weighs on both. The ratio should be at most 1.3 with plain screens;
// with dense ones the style itself costs tmux more than that.
func BenchmarkSurvey(b *testing.B) {
	for _, bm := range []struct {
		name, program string
		panes         int
	}{{"plain-1", plain, 1}, {"plain-10", plain, 10}, {"plain-50", plain, 50}, {"dense-50", dense, 50}} {
		b.Run(bm.name, func(b *testing.B) {
			s := startServer(b, "-s", "main", "-x", "120", "-y", "40", bm.program)
			for range bm.panes - 1 {
				s.tmux("new-window", "-d", bm.program)
			}
			var captures []string
			for _, p := range s.panes() {
				s.waitFor(p.ID, "row 39")
				captures = append(captures, "capture-pane", "-p", "-t", p.ID, ";")
			}
			captures = captures[:len(captures)-1]
			ctx, c := context.Background(), s.client()
			var bare, ours []time.Duration
			var bareCPU, oursCPU time.Duration
			server := s.pid()
			for b.Loop() {
				begin, used := time.Now(), cpu(b, server)
				if _, err := s.command("list-panes", "-a").Output(); err != nil {
					b.Fatal(err)
				}
				out, err := s.command(captures...).Output()
				if err != nil || strings.Count(string(out), "\n") != 40*bm.panes {
					b.Fatal(err)
				}
				bare = append(bare, time.Since(begin))
				bareCPU += cpu(b, server) - used

				begin, used = time.Now(), cpu(b, server)
				listing, err := c.Panes(ctx)
				if err != nil {
					b.Fatal(err)
				}
				screens, err := c.Capture(ctx, listing.Panes)
				if err != nil || len(screens) != bm.panes {
					b.Fatal(len(screens), err)
				}
				ours = append(ours, time.Since(begin))
				oursCPU += cpu(b, server) - used
			}
			b.ReportMetric(quantile(bare, 0.5), "bare-ms")
			b.ReportMetric(quantile(ours, 0.5), "survey-ms")
			b.ReportMetric(quantile(ours, 0.5)/quantile(bare, 0.5), "ratio")
			// Processor time of us, the clients and the server: it stays the
			// same on a machine that does other things.
			b.ReportMetric(float64(oursCPU)/float64(bareCPU), "cpu-ratio")
			b.ReportMetric(0, "ns/op") // both sides together; says nothing
		})
	}
}

// BenchmarkTyping is the cost of one guarded key and one guarded paste.
func BenchmarkTyping(b *testing.B) {
	s := startServer(b)
	r := s.addRecorder(true, "")
	ctx, c := context.Background(), s.client()
	b.Run("press", func(b *testing.B) {
		for b.Loop() {
			if err := c.Press(ctx, r.pane, "Enter"); err != nil {
				b.Fatal(err)
			}
		}
	})
	text := strings.Repeat("0123456789abcde\n", 2048)
	b.Run("paste-32KiB", func(b *testing.B) {
		for b.Loop() {
			if err := c.Paste(ctx, r.pane, text); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("look", func(b *testing.B) {
		for b.Loop() {
			if _, err := c.Look(ctx, r.pane); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// cpu gives the processor time used so far by us, our dead children and server.
func cpu(b *testing.B, server int) time.Duration {
	b.Helper()
	var total int64
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var r syscall.Rusage
		if err := syscall.Getrusage(who, &r); err != nil {
			b.Fatal(err)
		}
		total += r.Utime.Nano() + r.Stime.Nano()
	}
	var ran int64
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", server))
	if err == nil {
		_, err = fmt.Sscan(string(stat), &ran)
	}
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(total + ran)
}

func quantile(d []time.Duration, q float64) float64 {
	slices.Sort(d)
	return float64(d[int(q*float64(len(d)-1))]) / float64(time.Millisecond)
}
