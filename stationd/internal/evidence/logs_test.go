package evidence_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/shared/redact"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/evidence"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

const known = "a-known-secret-value"

func redactor(t testing.TB) *redact.Redactor {
	t.Helper()
	r := redact.New(redact.Options{Paths: map[string]string{"/srv/private/state": "<state>", "/srv/private/state/ws/1": "<work>"}})
	r.Learn(known)
	return r
}

func open(t testing.TB, dir string) *evidence.Logs {
	t.Helper()
	l, err := evidence.OpenLogs(dir, redactor(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func put(t testing.TB, l *evidence.Logs, stream string, seq int64, text string) int64 {
	t.Helper()
	if err := l.Write(stream, seq, []byte(text)); err != nil {
		t.Fatal(err)
	}
	return seq + int64(len(text))
}

// text is the log as it is read, streams marked by a letter when tagged.
func text(t testing.TB, l *evidence.Logs) string {
	t.Helper()
	var out strings.Builder
	if err := l.Read(t.Context(), false, func(_ string, text []byte) error { out.Write(text); return nil }); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func stored(t testing.TB, dir string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := evidence.ReadLogs(t.Context(), dir, func(_ string, text []byte) error { out.Write(text); return nil })
	return out.String(), err
}

// disk is what the files of a directory take.
func disk(t testing.TB, dir string) (n int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			n += info.Size()
		}
	}
	return n
}

// Output is kept redacted, in order, with its streams told apart.
func TestLogs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs", "stn", "1")
	l := open(t, dir)
	at := put(t, l, "stdout", 0, "hello\ntoken=abc\n")
	put(t, l, "stderr", 0, "oops: "+known+" in /srv/private/state/ws/1/x\n")
	at = put(t, l, "stdout", at, "half ")
	put(t, l, "stdout", at, "a line\n")
	if err := l.Write("stdin", 0, nil); err == nil {
		t.Error("a third stream")
	}
	var got []string
	read := func(stream string, text []byte) error { got = append(got, stream+": "+string(text)); return nil }
	if err := l.Read(t.Context(), false, read); err != nil {
		t.Fatal(err)
	}
	want := []string{"stdout: hello\ntoken=[redacted]\n", "stderr: oops: [redacted] in <work>/x\n", "stdout: half a line\n"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got %q", got)
	}
	all := text(t, l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := l.Summary()
	sum := sha256.Sum256([]byte(all))
	if err != nil || s != (evidence.LogSummary{Bytes: int64(len(all)), SHA256: hex.EncodeToString(sum[:])}) {
		t.Errorf("summary %+v, %v", s, err)
	}
	if later, err := stored(t, dir); err != nil || later != all {
		t.Errorf("after the end: %q, %v", later, err)
	}
	for _, name := range []string{dir, filepath.Join(dir, "head")} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if _, err := stored(t, filepath.Join(dir, "none")); err == nil {
		t.Error("a log that never was")
	}
}

// Proves station 17.V6: the beginning and the end are kept, the gap is marked, and the
// disk never holds more than the bound: looked at after every write.
func TestLogs_Bound(t *testing.T) {
	total := int64(64 << 20)
	switch {
	case testing.Short():
		total = 16 << 20
	case os.Getenv("DRAWBRIDGE_LONG") != "":
		total = 1 << 30
	}
	dir := t.TempDir()
	l := open(t, dir)
	var seq int64
	var most int64
	line := func(n int64) string { return fmt.Sprintf("line %012d %s\n", n, strings.Repeat("of some text ", 8)) }
	width := int64(len(line(0)))
	var lines int64
	for seq < total {
		var b strings.Builder
		for b.Len() < 60<<10 {
			b.WriteString(line(lines))
			lines++
		}
		seq = put(t, l, "stdout", seq, b.String())
		if lines%7 == 0 {
			most = max(most, disk(t, dir))
		}
	}
	most = max(most, disk(t, dir))
	if most > evidence.MaxLog || most < 7<<20 {
		t.Errorf("at most %d bytes of disk, the bound is %d", most, evidence.MaxLog)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	all := text(t, l)
	first, last, ok := strings.Cut(all, "[station: ")
	if !ok || len(first) < 900<<10 || len(last) < 6<<20 {
		t.Fatalf("%d bytes before the mark, %d behind", len(first), len(last))
	}
	mark, last, _ := strings.Cut(last, "\n")
	var missing int64
	if _, err := fmt.Sscanf(mark, "%d bytes are left out here]", &missing); err != nil || missing != seq-int64(len(first))-int64(len(last)) {
		t.Errorf("the mark says %q; %d of %d bytes are there", mark, len(first)+len(last), seq)
	}
	if !strings.HasPrefix(first, line(0)) || !strings.HasSuffix(last, line(lines-1)) || int64(len(first))%width != 0 || int64(len(last))%width != 0 {
		t.Errorf("begins %.40q, ends %.40q", first, last[len(last)-40:])
	}
	s, err := l.Summary()
	sum := sha256.Sum256([]byte(all))
	if err != nil || s.Bytes != int64(len(first)+len(last)) || s.Dropped != missing || s.SHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("summary %+v, %v", s, err)
	}
}

// A stationd that is killed and adopts the daemon goes on where the log stands: wherever
// it was killed and whatever the shim sends again, the log is that of one that lived.
func TestLogs_Reopen(t *testing.T) {
	const whole = "first line\nAuthorization: Bearer abcdef\n folded-secret-value\nsecond token=abc and more\n-----BEGIN RSA PRIVATE KEY-----\nMIIEowIB\nabcd\n-----END RSA PRIVATE KEY-----\nlast " + known + " line\n"
	want := redactor(t).Text(whole)
	for cut := 0; cut <= len(whole); cut += 3 {
		dir := t.TempDir()
		l, err := evidence.OpenLogs(dir, redactor(t))
		if err != nil {
			t.Fatal(err)
		}
		put(t, l, "stdout", 0, whole[:cut])
		put(t, l, "stderr", 0, "err\n")
		taken := l.Taken("stdout")
		if taken > int64(cut) {
			t.Fatalf("%d of %d bytes taken", taken, cut)
		}
		// Killed: what l holds back is gone. Its files are copied, for it has to end.
		again := t.TempDir()
		if err := os.CopyFS(again, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		// Or it leaves, which writes nothing more.
		if err := l.Leave(); err != nil {
			t.Fatal(err)
		}
		if cut%2 == 0 {
			again = dir
		}
		m := open(t, again)
		if got := m.Taken("stdout"); got != taken {
			t.Fatalf("killed at %d: %d bytes taken, then %d", cut, taken, got)
		}
		from := max(0, taken-20) // the shim had not heard of the last acknowledgement
		put(t, m, "stdout", from, whole[from:])
		put(t, m, "stderr", 0, "err\n")
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		got := strings.Replace(text(t, m), "err\n", "", 1)
		if got != want {
			t.Fatalf("killed at %d:\n got %q\nwant %q", cut, got, want)
		}
		if s, err := m.Summary(); err != nil || s.Dropped != 0 {
			t.Fatalf("killed at %d: %+v, %v", cut, s, err)
		}
	}
}

// A file whose end is missing is cut where it is whole; one that never got its first
// line is made anew.
func TestLogs_Torn(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	at := put(t, l, "stdout", 0, "one\n")
	put(t, l, "stdout", at, "two\n")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	head := filepath.Join(dir, "head")
	data, err := os.ReadFile(head)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range data {
		if err := os.WriteFile(head, data[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		m := open(t, dir)
		from := m.Taken("stdout")
		put(t, m, "stdout", from, "one\ntwo\n"[from:])
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if got := text(t, m); got != "one\ntwo\n" {
			t.Fatalf("cut at %d: %q", cut, got)
		}
	}
}

// What nobody sends any more is marked, counted, and hides what may belong to it.
func TestLogs_Lost(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	put(t, l, "stdout", 0, "one\nkey "+known[:9])
	if err := l.Lost("stdout", 17, 1000); err != nil {
		t.Fatal(err)
	}
	put(t, l, "stdout", 1017, known[9:]+" rest of it\nnext one\n")
	put(t, l, "stdout", 2000, " folded\nthe end\n") // a gap that nobody told of
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	want := "one\n[station: 1000 bytes of stdout were lost here]\n[redacted]\nnext one\n"
	got := text(t, l)
	if !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "bytes of stdout were lost here]\n[redacted]\nthe end\n") {
		t.Errorf("got %q", got)
	}
	s, err := l.Summary()
	if gap := 2000 - 1017 - int64(len(known[9:]+" rest of it\nnext one\n")); err != nil || s.Dropped != 1000+gap {
		t.Errorf("summary %+v, %v; %d were lost", s, err, 1000+gap)
	}
	m := open(t, dir)
	if got := m.Taken("stdout"); got != 2000+int64(len(" folded\nthe end\n")) {
		t.Errorf("taken %d", got)
	}
}

// Proves station 17.D7 for logs -f: a secret in two writes with a moment between them
// is not shown, and the rest is at once; whoever follows sees the end.
func TestLogs_Follow(t *testing.T) {
	l := open(t, t.TempDir())
	var mu sync.Mutex
	var out bytes.Buffer
	shown := func() string { mu.Lock(); defer mu.Unlock(); return out.String() }
	done := make(chan error, 1)
	go func() {
		done <- l.Read(t.Context(), true, func(_ string, text []byte) error {
			mu.Lock()
			defer mu.Unlock()
			out.Write(text)
			return nil
		})
	}()
	see := func(want string) {
		t.Helper()
		testkit.Eventually(t, 5*time.Second, func() bool { return shown() == want }, "the log shows "+want)
	}
	at := put(t, l, "stdout", 0, "a line\n")
	see("a line\n")
	at = put(t, l, "stdout", at, "the key "+known[:9])
	see("a line\nthe key ")
	if l.Taken("stdout") != at-9 {
		t.Errorf("%d of %d bytes taken", l.Taken("stdout"), at)
	}
	put(t, l, "stdout", at, known[9:]+" x\n")
	see("a line\nthe key [redacted] x\n")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := open(t, t.TempDir())
	if err := m.Read(ctx, true, func(string, []byte) error { return nil }); err == nil {
		t.Error("nobody follows, and it goes on")
	}
}

// A reader that is overtaken by the bound is told how much it missed.
func TestLogs_SlowFollower(t *testing.T) {
	l := open(t, t.TempDir())
	at := put(t, l, "stdout", 0, "first\n")
	begun, release := make(chan struct{}), make(chan struct{})
	var out strings.Builder
	done := make(chan error, 1)
	go func() {
		done <- l.Read(t.Context(), true, func(stream string, text []byte) error {
			if out.Len() == 0 {
				close(begun)
				<-release
			}
			out.Write(text)
			return nil
		})
	}()
	<-begun
	line := strings.Repeat("x ", 500) + "\n"
	for range 12 << 10 {
		at = put(t, l, "stdout", at, line)
	}
	close(release)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	kept := strings.Count(out.String(), line)
	var missing int
	_, mark, _ := strings.Cut(out.String(), "[station: ")
	if _, err := fmt.Sscanf(mark, "%d bytes are left out", &missing); err != nil || missing+kept*len(line) != len(line)*(12<<10) {
		t.Errorf("%d lines came, %d bytes are said to be missing: %v", kept, missing, err)
	}
	_ = at
}

// A disk that takes nothing costs text, not the attempt.
func TestLogs_DiskFails(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	at := put(t, l, "stdout", 0, strings.Repeat("a line of text\n", 70<<10)) // the head is full
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	err := l.Write("stdout", at, bytes.Repeat([]byte("more\n"), 60<<10))
	if err == nil {
		t.Fatal("no error")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, l, "stdout", at+(60<<10)*5, "the end\n")
	if got := text(t, l); !strings.HasSuffix(got, "the end\n") || !strings.Contains(got, "left out") {
		t.Errorf("got %q", got)
	}
}
