package main

import (
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/control"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/evidence"
)

// origin is a server of this machine that takes what comes, answers with so many
// bytes, and counts both.
type origin struct {
	address  string
	taken    atomic.Int64
	answered atomic.Int64
}

func newOrigin(t *testing.T, host string, answer int) *origin {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	o := &origin{address: l.Addr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				n, _ := c.Write(make([]byte, answer))
				o.answered.Add(int64(n))
				_ = c.(*net.TCPConn).CloseWrite()
				_ = c.SetReadDeadline(time.Now().Add(limit))
				taken, _ := io.Copy(io.Discard, c)
				o.taken.Add(taken)
			})
		}
	})
	t.Cleanup(func() { l.Close(); serving.Wait() })
	return o
}

// own is an address of this machine that programs do not take for themselves.
func own(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if ip := a.(*net.IPNet).IP.To4(); ip != nil && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			return ip.String()
		}
	}
	return "127.0.0.1" // a machine without a network; the profile opens exactly this one
}

// Proves station 17.V4: what evidence says of the way out is what went through it:
// counts, bytes both ways, and each refusal with its reason.
func TestEvidence_Egress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	host := own(t)
	o := newOrigin(t, host, 70_001)
	_, port, _ := net.SplitHostPort(o.address)
	profiles := w.write("egress.json", `{"profiles":[{"name":"box","allow":["files.test"],"ports":[443,`+port+`],"private":[{"cidr":"`+host+`/32","ports":[`+port+
		`],"reviewedBy":"ops","reviewedAt":"2026-01-31","reason":"a server of this test"}]}]}`)
	w.serve("-egress-profiles", profiles)
	var s control.Started
	w.answer(&s, "start", "-wait", "-f", w.fields(map[string]any{"egressProfile": "box"}))
	v := w.visitor(s.StationID)
	const proxy = "127.0.0.1:3128"
	for range 3 {
		if got := w.send(v, "GET", s.Bridge.URL+"/drain?proxy="+proxy+"&address="+o.address, ""); !strings.Contains(got, `"bytes":70001`) {
			t.Fatalf("through the proxy: %s", got)
		}
	}
	connect := func(target, more string) string {
		request := fmt.Sprintf("CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n%[2]s", target, more)
		return w.send(v, "GET", s.Bridge.URL+"/dial?address="+proxy+"&send="+url.QueryEscape(request), "")
	}
	if got := connect(o.address, strings.Repeat("x", 1234)); !strings.Contains(got, "200") {
		t.Errorf("with bytes to send: %s", got)
	}
	for target, times := range map[string]int{"other.test:443": 2, "api.openai.com:443": 1, "10.1.2.3:443": 1, "169.254.169.254:80": 1, "files.test:22": 1} {
		for range times {
			if got := connect(target, ""); !strings.Contains(got, "403") {
				t.Errorf("%s: %s", target, got)
			}
		}
	}
	testkit.Eventually(t, limit, func() bool { return o.taken.Load() == 1234 }, "the origin took what was sent")
	w.must("stop", s.StationID, "-wait")
	f, text := w.document(s.StationID, 1)
	e := f.Egress
	if e.Profile != "box" || e.Enforcement != egress.Netns || e.Overflow != 0 || len(e.Allowed) != 1 || e.Allowed[0].Count != 4 ||
		net.JoinHostPort(e.Allowed[0].Host, fmt.Sprint(e.Allowed[0].Port)) != o.address {
		t.Fatal(text)
	}
	if e.BytesUp != o.taken.Load() || e.Allowed[0].BytesUp != e.BytesUp || e.Allowed[0].BytesDown != e.BytesDown || e.BytesDown < 3*70_001 || e.BytesDown > o.answered.Load() {
		t.Errorf("%d up, %d down; the origin took %d and gave %d", e.BytesUp, e.BytesDown, o.taken.Load(), o.answered.Load())
	}
	got := map[string]int64{}
	for _, row := range e.Denied {
		got[fmt.Sprintf("%s:%d %s", row.Host, row.Port, row.Code)] = row.Count
	}
	for want, count := range map[string]int64{"other.test:443 name_denied": 2, "api.openai.com:443 name_denied": 1, "10.1.2.3:443 ip_literal": 1, "169.254.169.254:80 ip_literal": 1, "files.test:22 port_denied": 1} {
		if got[want] != count {
			t.Errorf("%s: %d, want %d; %v", want, got[want], count, got)
		}
	}
}

// Proves station 17.V6: a daemon that floods its log fills neither the disk nor the
// memory, and is not held up; head, tail and what is left out are said.
func TestEvidence_Flood(t *testing.T) {
	t.Parallel()
	flood := int64(96 << 20)
	if os.Getenv("DRAWBRIDGE_LONG") != "" {
		flood = 1 << 30
	}
	w := newWorld(t)
	w.serve()
	s := w.start("-flood", fmt.Sprint(flood))
	v := w.visitor(s.StationID)
	dir := evidence.LogDir(w.path("state"), s.StationID, 1)
	var most int64
	quiet, last := 0, ""
	testkit.Eventually(t, 10*limit, func() bool {
		most = max(most, size(t, dir))
		log := w.must("logs", s.StationID)
		if quiet++; log != last {
			quiet, last = 0, log
		}
		return quiet > 3 && len(log) > 6<<20
	}, "the flood ends")
	if status, body := w.get(v, s.Bridge.URL+"/health"); status != 200 {
		t.Errorf("during the flood: %d %s", status, body)
	}
	w.must("stop", s.StationID, "-wait")
	most = max(most, size(t, dir))
	f, text := w.document(s.StationID, 1)
	if most > evidence.MaxLog || f.Logs.Bytes > evidence.MaxLog || f.Logs.Bytes < 6<<20 {
		t.Errorf("at most %d bytes of disk: %s", most, text)
	}
	const hidden = 16 << 10 // the pieces of lines around a gap, which are redacted and not dropped
	if all := f.Logs.Bytes + f.Logs.Dropped; all < flood-hidden || all > flood+(1<<20) {
		t.Errorf("%d bytes kept and %d dropped, of %d", f.Logs.Bytes, f.Logs.Dropped, flood)
	}
	if log := w.must("logs", s.StationID); !strings.HasPrefix(log, "testharness: listening") && !strings.HasPrefix(log, "flood ") || !strings.Contains(log, "[station: ") {
		t.Errorf("begins %.80q", log)
	}
}

// size is what the files of a log take together at one moment: where one came or went
// meanwhile, it is looked again.
func size(t *testing.T, dir string) (n int64) {
	t.Helper()
	testkit.Eventually(t, limit, func() bool {
		before, err := os.ReadDir(dir)
		if err != nil {
			return false
		}
		n = 0
		for _, e := range before {
			info, err := e.Info()
			if err != nil {
				return false
			}
			n += info.Size()
		}
		after, err := os.ReadDir(dir)
		return err == nil && slices.EqualFunc(before, after, func(a, b fs.DirEntry) bool { return a.Name() == b.Name() })
	}, "a moment at which no file comes or goes")
	return n
}

// Proves station 17.V10: one byte changed in an event or in a document makes verify end
// with 1 and name the place.
func TestEvidence_Changed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.serve()
	s := w.start()
	w.must("stop", s.StationID, "-wait")
	w.must("evidence", "verify", s.StationID)
	d.signal(syscall.SIGTERM).exits(0)
	// Whoever changes it does so behind the program's back: in the file, of equal length.
	path := filepath.Join(w.path("store"), "store.db")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for place, change := range map[string][2]string{
		"evidence of attempt 1": {`"redactionPolicy":"redact/1"`, `"redactionPolicy":"redact/2"`},
		"event ":                {`ready{"port":`, `reado{"port":`},
	} {
		if n := strings.Count(string(whole), change[0]); n != 1 {
			t.Fatalf("%s stands %d times in the Store", change[0], n)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(whole), change[0], change[1], 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		d := w.serve()
		out, errs, status := w.stationd("evidence", "verify", s.StationID)
		if status != 1 || !strings.Contains(out, "FLAW  "+place) || !strings.Contains(errs, "[evidence_flawed]") {
			t.Errorf("%s: %d %s %s", place, status, out, errs)
		}
		d.signal(syscall.SIGTERM).exits(0)
	}
}

// An export replaces no file, and says what to do instead.
func TestExport_FileExists(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kept")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	runtime := canned(t, 200, `{}`)
	_, errs, status := call(t, "evidence", "export", "stn_a", "-o", path, "-runtime-dir", runtime)
	if status != 2 || !strings.Contains(errs, "export evidence of station stn_a: "+path+" is there already\nstationd: hint: an export replaces nothing") {
		t.Errorf("status %d, %s", status, errs)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "mine" {
		t.Errorf("%q, %v", data, err)
	}
	_, errs, status = call(t, "evidence", "export", "stn_a", "-o", filepath.Join(path, "below"), "-runtime-dir", runtime)
	if status != 2 || !strings.Contains(errs, "hint: give -o a file in a directory that is there") {
		t.Errorf("status %d, %s", status, errs)
	}
}
