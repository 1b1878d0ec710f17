package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"drawbridge/stationd/internal/wire"
)

func TestParseHomes(t *testing.T) {
	const passwd = `root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
www:x:33:33::/srv/www:/bin/false
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
ada:x:1000:1000:,,,:/srv/people/ada/:/bin/bash
system:x:1001:1001::/:/bin/sh
user:x:1002:1002::/usr:/bin/sh
local:x:1003:1003::/usr/local/me:/bin/sh
short:x:1004
`
	got, err := parseHomes(strings.NewReader(passwd), []int{33})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/root", "/srv/www", "/srv/people/ada", "/usr/local/me"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestHides(t *testing.T) {
	dir := t.TempDir()
	spec := wire.Spec{Runtime: dir, Workspace: "/srv/work", Home: "/srv/home", Temp: "/srv/temp"}
	got, err := hides(spec)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range got {
		for _, b := range got[i+1:] {
			if within(b, a) || within(a, b) {
				t.Errorf("%s and %s", a, b)
			}
		}
	}
	for _, bad := range []string{"", "x", "/", "/srv/work/state"} {
		spec.Hide = []string{bad}
		if got, err := hides(spec); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

func TestClosed(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, mode := range map[string]os.FileMode{"private": 0o700, "private/in": 0o755, "group": 0o710, "open": 0o711} {
		if err := os.MkdirAll(at(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(at(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	spec := wire.Spec{Workspace: at("private/in/work"), Home: at("group/home"), Temp: at("open/temp")}
	for name, tc := range map[string]struct {
		user *wire.User
		want []string
	}{
		"nobody else":  {nil, nil},
		"a stranger":   {&wire.User{UID: 54321, GID: 54321}, []string{at("private"), at("group")}},
		"of the group": {&wire.User{UID: 54321, GID: os.Getgid()}, []string{at("private")}},
		"the owner":    {&wire.User{UID: os.Getuid(), GID: 54321}, nil},
	} {
		spec.RunAs = tc.user
		got := slices.DeleteFunc(closed(spec), func(d string) bool { return !strings.HasPrefix(d, dir+"/") })
		if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestRing(t *testing.T) {
	r := newRing()
	write := func(n int) { _, _ = r.Write(make([]byte, n)) }
	write(10)
	data, at, _ := r.next(0)
	if len(data) != 10 || at != 0 {
		t.Errorf("%d bytes at %d", len(data), at)
	}
	if data, _, again := r.next(10); data != nil || again == nil {
		t.Errorf("nothing new, yet %d bytes", len(data))
	}
	r.ack(4)
	if data, at, _ := r.next(r.taken()); len(data) != 6 || at != 4 {
		t.Errorf("after the ack %d bytes at %d", len(data), at)
	}
	r.ack(11) // more than there is
	r.ack(2)  // less than was taken
	if r.taken() != 4 {
		t.Errorf("taken %d", r.taken())
	}
	write(2 * wire.RingBytes)
	total, dropped := r.count()
	if total != 10+2*wire.RingBytes || dropped != total-wire.RingBytes-4 {
		t.Errorf("%d of %d lost", dropped, total)
	}
	sent := r.taken()
	_, at, _ = r.next(sent)
	if at != total-wire.RingBytes {
		t.Errorf("goes on at %d", at)
	}
	for n := 0; ; n++ {
		data, at, again := r.next(sent)
		sent = at
		if again != nil {
			if n != wire.MaxUntold/wire.MaxChunk {
				t.Errorf("%d chunks ahead of the ack", n)
			}
			break
		}
		sent += int64(len(data))
	}
	r.ack(sent)
	if data, _, _ := r.next(sent); len(data) != wire.MaxChunk {
		t.Errorf("after the ack %d bytes", len(data))
	}
}

// What end keeps of a reason is a plain word.
func TestReasonOf(t *testing.T) {
	for asked, want := range map[string]string{"operator_stop": "operator_stop", "": "killed", "A": "killed", "a b": "killed", strings.Repeat("a", 65): "killed"} {
		if got := reasonOf(asked); got != want {
			t.Errorf("%q: %s, want %s", asked, got, want)
		}
	}
}

// A stationd that says nothing any more is none, however long its connection seems to
// live; a short orphan time makes nobody hurry who is attached.
func TestAttended(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		attached bool
		silent   time.Duration
		orphan   time.Duration
		want     bool
	}{
		"nobody":          {false, 0, time.Hour, false},
		"heard just now":  {true, time.Second, time.Second, true},
		"silent":          {true, 2 * silentTime, time.Second, false},
		"patient":         {true, 2 * silentTime, 3 * silentTime, true},
		"patience is out": {true, 4 * silentTime, 3 * silentTime, false},
	} {
		s := &shim{alone: now.Add(-time.Hour), heard: now.Add(-tc.silent)}
		since := s.alone
		if tc.attached {
			s.current, since = &session{}, s.heard
		}
		if got, alone := s.attended(tc.orphan); got != tc.want || !alone.Equal(since) {
			t.Errorf("%s: %v since %v", name, got, now.Sub(alone))
		}
	}
	c := &session{}
	s := &shim{current: c, heard: now.Add(-time.Hour)}
	s.hear(&session{}) // the one before
	if yes, _ := s.attended(time.Second); yes {
		t.Error("heard of a session that was replaced")
	}
	s.hear(c)
	if yes, _ := s.attended(time.Second); !yes {
		t.Error("not heard")
	}
}
