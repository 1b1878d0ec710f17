package journal_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/journal"
)

const limit = 1 << 20

// write makes a journal of the given text.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "j")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, path string, limit int) *journal.File {
	t.Helper()
	f, err := journal.Open(path, limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// texts collects the lines that a reader gives.
func texts(into *[]string) func(journal.Line) error {
	return func(l journal.Line) error {
		*into = append(*into, string(l.Data))
		return nil
	}
}

// TestLines: both directions give the same complete lines, and never what follows
// the last newline.
func TestLines(t *testing.T) {
	long := strings.Repeat("x", 300<<10) // over every buffer
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"empty", "", nil},
		{"half a line", "abc", nil},
		{"one", "abc\n", []string{"abc"}},
		{"one and a half", "abc\nde", []string{"abc"}},
		{"empty lines", "\n\na\n\n", []string{"", "", "a", ""}},
		{"long ones", long + "\n" + long + "y\nz\n" + long, []string{long, long + "y", "z"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := open(t, write(t, tc.text), limit)
			var forwards, backwards []string
			end, whole, err := f.Scan(context.Background(), 0, 1<<30, texts(&forwards))
			if err != nil || !whole || int(end) != strings.LastIndexByte(tc.text, '\n')+1 {
				t.Errorf("scan: to %d, whole %v, %v", end, whole, err)
			}
			if whole, err := f.Back(context.Background(), 1<<30, texts(&backwards)); err != nil || !whole {
				t.Errorf("back: whole %v, %v", whole, err)
			}
			if strings.Join(forwards, "\n") != strings.Join(tc.want, "\n") || len(forwards) != len(tc.want) {
				t.Errorf("forwards %d lines, want %d", len(forwards), len(tc.want))
			}
			for i, line := range backwards {
				if line != tc.want[len(tc.want)-1-i] {
					t.Errorf("line %d from the end differs", i)
				}
			}
			if len(backwards) != len(tc.want) {
				t.Errorf("backwards %d lines, want %d", len(backwards), len(tc.want))
			}
			if at, err := f.End(context.Background()); err != nil || at != end {
				t.Errorf("end %d, %v, want %d", at, err, end)
			}
		})
	}
}

func TestScan_Stops(t *testing.T) {
	f := open(t, write(t, "a\nb\nc\n"), limit)
	var got []string
	end, whole, err := f.Scan(context.Background(), 2, 1<<30, func(l journal.Line) error {
		got = append(got, string(l.Data))
		return io.EOF
	})
	if err != nil || !whole || end != 2 || len(got) != 1 || got[0] != "b" {
		t.Errorf("io.EOF: to %d, whole %v, %v, %q", end, whole, err, got)
	}
	if end, whole, err := f.Scan(context.Background(), 0, 3, texts(&got)); err != nil || whole || end != 2 {
		t.Errorf("a limit of three bytes: to %d, whole %v, %v", end, whole, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := f.Scan(ctx, 0, 1<<30, texts(&got)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	short := open(t, write(t, "abcdefgh\n"), 4)
	if _, _, err := short.Scan(context.Background(), 0, 1<<30, texts(&got)); !errors.Is(err, journal.ErrTooLong) {
		t.Errorf("a long line: %v", err)
	}
	if _, err := open(t, write(t, strings.Repeat("x", 100<<10)+"\n"), 4).Back(context.Background(), 1<<30, texts(&got)); err != nil && !errors.Is(err, journal.ErrTooLong) {
		t.Errorf("a long line from behind: %v", err)
	}
}

// TestOpenAt: a position holds in the same file behind the same newline only.
func TestOpenAt(t *testing.T) {
	path := write(t, "one\ntwo\n")
	first := open(t, path, limit)
	at := agent.Position{Path: path, File: first.ID, Offset: 4}
	if f, err := journal.OpenAt(at, limit); err != nil {
		t.Fatal(err)
	} else {
		f.Close()
	}
	for name, edit := range map[string]func(*agent.Position){
		"within a line":   func(p *agent.Position) { p.Offset = 5 },
		"behind the end":  func(p *agent.Position) { p.Offset = 9 },
		"before the file": func(p *agent.Position) { p.Offset = -1 },
		"another file":    func(p *agent.Position) { p.File.Ino++ },
		"no file":         func(p *agent.Position) { p.Path += "x" },
		"a directory":     func(p *agent.Position) { p.Path = filepath.Dir(p.Path) },
		"below a file":    func(p *agent.Position) { p.Path += "/x" },
	} {
		moved := at
		edit(&moved)
		if f, err := journal.OpenAt(moved, limit); !errors.Is(err, journal.ErrMoved) {
			t.Errorf("%s: %v, %v", name, f, err)
		}
	}
	link := path + "-link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Open(link, limit); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a symbolic link: %v", err)
	}
	fifo := path + "-fifo"
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Open(fifo, limit); !errors.Is(err, journal.ErrNotFile) {
		t.Errorf("a pipe: %v", err)
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("a\n\nbc"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file := open(t, write(t, string(data)), limit)
		var forwards, backwards []string
		if _, _, err := file.Scan(context.Background(), 0, 1<<30, texts(&forwards)); err != nil {
			t.Fatal(err)
		}
		if _, err := file.Back(context.Background(), 1<<30, texts(&backwards)); err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(data, []byte("\n")); len(forwards) != n || len(backwards) != n {
			t.Fatalf("%d lines, %d forwards, %d backwards", n, len(forwards), len(backwards))
		}
		for i := range forwards {
			if forwards[i] != backwards[len(backwards)-1-i] {
				t.Fatalf("line %d differs", i)
			}
		}
	})
}
