package main

import (
	"context"
	"database/sql"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	_ "github.com/mattn/go-sqlite3"
	"golang.org/x/sys/unix"

	"drawbridge/shared/redact"
	"drawbridge/shared/store"
)

// creatorVariable makes the test binary a creator on the Store that it names.
const creatorVariable = "BROKERD_TEST_CREATOR"

// creator is what a kitrun does: it takes its lease, asks for a grant, says what it
// got, and waits to be killed.
func creator(dir string) int {
	ctx := context.Background()
	s, err := store.Open(ctx, store.Options{Dir: dir, Program: "kitrun"})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	lease, err := s.Acquire(ctx, "kitrun/killed", time.Hour)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	capability, hash := redact.NewCapability()
	g, err := s.CreateGrant(ctx, store.NewGrant{CapabilitySHA256: hash, CredentialRef: os.Args[1], Creator: lease, Request: store.GrantRequest{Model: model}})
	if err == nil {
		g, err = s.AwaitGrant(ctx, g.ID, limit)
	}
	fmt.Println(g.ID, capability.Reveal(), err)
	_, _ = os.Stdin.Read(make([]byte, 1))
	return 0
}

// lock takes the write lock of the Store, as a program that hangs in a transaction.
func (w *world) lock() (release func()) {
	w.t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(w.dir, "store.db")+"?_busy_timeout=20000")
	if err != nil {
		w.t.Fatal(err)
	}
	conn, err := db.Conn(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := conn.ExecContext(context.Background(), "BEGIN IMMEDIATE"); err != nil {
		w.t.Fatal(err)
	}
	done := false
	release = func() {
		if done {
			return
		}
		done = true
		conn.ExecContext(context.Background(), "ROLLBACK")
		conn.Close()
		db.Close()
	}
	w.t.Cleanup(release)
	return release
}

// full makes every write of a running brokerd beyond the files it has fail, as on a
// disk that is full.
func (d *child) full() (free func()) {
	d.t.Helper()
	var before unix.Rlimit
	if err := unix.Prlimit(d.cmd.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1, Max: unix.RLIM_INFINITY}, &before); err != nil {
		d.t.Fatal(err)
	}
	return func() {
		if err := unix.Prlimit(d.cmd.Process.Pid, unix.RLIMIT_FSIZE, &before, nil); err != nil {
			d.t.Error(err)
		}
	}
}

// told runs a command in this process and gives what it says on stderr.
func (w *world) told(args ...string) (status int, said string) {
	w.t.Helper()
	var errs strings.Builder
	status = run(w.t.Context(), append(args, "-store-dir", w.dir), io.Discard, &errs)
	return status, errs.String()
}

// dial connects to a grant's endpoint and says nothing.
func (w *world) dial(g lent) net.Conn {
	w.t.Helper()
	u, err := url.Parse(g.url())
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	return c
}

// registered asks for the shared budget of a run, whose ledger file stands in a
// private directory of the home.
func (w *world) registered(run string, first bool) func(*store.NewGrant) {
	w.t.Helper()
	dir := filepath.Join(w.home, "ledger")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	return func(n *store.NewGrant) {
		n.Request.RequestBindingDigest = fmt.Sprintf("sha256:%064x", run)
		n.Request.LedgerFile, n.Request.Initialize, n.Request.MaxRequests = w.ledger(run), first, 5
	}
}

func (w *world) ledger(run string) string { return filepath.Join(w.home, "ledger", run+".json") }

// jwt is a token that ends at a time. It is not signed: nobody here verifies it.
func jwt(end time.Time) string {
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	return "test-" + part(`{"alg":"none"}`) + "." + part(fmt.Sprintf(`{"exp":%d}`, end.Unix())) + ".c2lnbmF0dXJl"
}
