package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// refused asks for a grant and demands the code of the refusal.
func (w *world) refused(code fault.Code, change ...func(*store.NewGrant)) {
	w.t.Helper()
	g := w.ask(func(n *store.NewGrant) {
		for _, c := range change {
			c(n)
		}
	})
	if _, err := w.AwaitGrant(w.t.Context(), g.ID, limit); !fault.Is(err, code) {
		w.t.Errorf("got %v, want %s", err, code)
	}
}

// Proves broker 18.19: a registered budget goes on in the next session, and takes no
// other terms.
func TestRegistered_Resumed(t *testing.T) {
	w := newWorld(t)
	d := w.serve()
	w.refused(fault.BudgetMissing, w.registered("r", false))
	first := w.lend(w.registered("r", true))
	first.post(200)
	first.post(200)
	first.close()
	w.refused(fault.BudgetExists, w.registered("r", true))
	d.signal(syscall.SIGTERM).exits(0)
	w.serve()
	for name, change := range map[string]func(*store.NewGrant){
		"model":  func(n *store.NewGrant) { n.Request.Model = "another" },
		"effort": func(n *store.NewGrant) { n.Request.ReasoningEffort = "low" },
		"limit":  func(n *store.NewGrant) { n.Request.MaxRequests = 6 },
		"origin": func(n *store.NewGrant) {
			n.CredentialRef = w.write("token.json", `{"tokens":{"access_token":"test-token-0123456789"}}`)
		},
	} {
		t.Run(name, func(t *testing.T) { w.refused(fault.BudgetMismatch, w.registered("r", false), change) })
	}
	w.refused(fault.BudgetMissing, w.registered("r", false), func(n *store.NewGrant) { n.Request.RequestBindingDigest = "sha256:" + strings.Repeat("9", 64) })
	w.refused(fault.BudgetExists, w.registered("r", true), func(n *store.NewGrant) { n.Request.RequestBindingDigest = "sha256:" + strings.Repeat("9", 64) })
	resumed := w.lend(w.registered("r", false))
	if resumed.Forwarded != 0 || resumed.TotalForwarded != 2 {
		t.Errorf("resumed with %d of %d", resumed.Forwarded, resumed.TotalForwarded)
	}
	for range 3 {
		resumed.post(200)
	}
	if code := resumed.post(429); code != "budget" || w.seen() != 5 {
		t.Errorf("refused as %q, the provider saw %d", code, w.seen())
	}
	if got := resumed.now(); got.Forwarded != 3 || got.TotalForwarded != 5 {
		t.Errorf("spent %d of %d", got.Forwarded, got.TotalForwarded)
	}
}

// Proves broker 18.20: a second session of a budget is refused as often as it asks,
// and the first goes on. Also after a brokerd died and the next one took it over.
func TestRegistered_Owned(t *testing.T) {
	w := newWorld(t)
	d := w.serve()
	first := w.lend(w.registered("r", true))
	for range 2 {
		w.refused(fault.BudgetOwned, w.registered("r", false))
		first.post(200)
	}
	d.signal(syscall.SIGKILL).exits(-1)
	w.serve()
	w.refused(fault.BudgetOwned, w.registered("r", false))
	first.post(200)
	first.close()
	w.lend(w.registered("r", false)).post(200)
}

// Proves broker 18.21: whatever is done to the ledger file, the next request is
// refused and nothing is forwarded, then and under the next brokerd.
func TestRegistered_Tampered(t *testing.T) {
	for name, tamper := range map[string]func(path string) error{
		"deleted": os.Remove,
		"edited": func(path string) error {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, []byte(strings.Replace(string(data), `"bb_`, `"bc_`, 1)), 0o600)
		},
		"longer": func(path string) error {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteString("\n")
			return err
		},
		"readable":           func(path string) error { return os.Chmod(path, 0o644) },
		"directory readable": func(path string) error { return os.Chmod(filepath.Dir(path), 0o750) },
		"a link": func(path string) error {
			if err := os.Rename(path, path+".real"); err != nil {
				return err
			}
			return os.Symlink(path+".real", path)
		},
		"a fifo": func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return syscall.Mkfifo(path, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			d := w.serve()
			g := w.lend(w.registered("r", true))
			g.post(200)
			if err := tamper(w.ledger("r")); err != nil {
				t.Fatal(err)
			}
			if code := g.post(429); code != "budget" {
				t.Errorf("refused as %q", code)
			}
			if end := g.becomes(store.GrantClosed); end.CloseReason != string(fault.BudgetIntegrity) || end.TotalForwarded != 1 {
				t.Errorf("got %q, %d spent", end.CloseReason, end.TotalForwarded)
			}
			d.signal(syscall.SIGKILL).exits(-1)
			w.serve()
			w.refused(fault.BudgetIntegrity, w.registered("r", false))
			g.post401(t)
			if w.seen() != 1 {
				t.Errorf("the provider saw %d", w.seen())
			}
		})
	}
}

// The same while no brokerd lives: the next one does not take the grant over.
func TestRegistered_TamperedBetween(t *testing.T) {
	w := newWorld(t)
	d := w.serve()
	g := w.lend(w.registered("r", true))
	d.signal(syscall.SIGKILL).exits(-1)
	if err := os.Remove(w.ledger("r")); err != nil {
		t.Fatal(err)
	}
	w.serve()
	if end := g.becomes(store.GrantClosed); end.CloseReason != string(fault.BudgetIntegrity) {
		t.Errorf("got %q", end.CloseReason)
	}
	g.post401(t)
}

// A crash after the row of the budget and before its ledger file, and one after the
// file: the next brokerd finishes what this grant began.
func TestRegistered_CrashInBetween(t *testing.T) {
	for _, point := range []string{"budget_prepared", "anchor_written"} {
		t.Run(point, func(t *testing.T) {
			w := newWorld(t)
			d := w.serve("DRAWBRIDGE_TEST_EXIT_AT=" + point)
			g := w.ask(w.registered("r", true))
			d.exits(crashpoint.ExitCode)
			if _, err := os.Lstat(w.ledger("r")); (err == nil) != (point == "anchor_written") {
				t.Errorf("ledger file: %v", err)
			}
			w.serve()
			g.Grant = g.becomes(store.GrantActive)
			g.post(200)
		})
	}
}

// A session that may not write its ledger file is refused before there is a budget:
// once its directory is what it must be, the run begins.
func TestRegistered_NoPlaceForTheLedger(t *testing.T) {
	w := newWorld(t)
	w.serve()
	dir := filepath.Join(w.home, "open")
	open := func(n *store.NewGrant) { n.Request.LedgerFile = filepath.Join(dir, "l.json") }
	w.refused(fault.BudgetIntegrity, w.registered("r", true), open)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w.refused(fault.BudgetIntegrity, w.registered("r", true), open)
	w.refused(fault.BudgetMissing, w.registered("r", false), open)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	first := w.registered("r", true)
	g := w.lend(func(n *store.NewGrant) { first(n); open(n) })
	g.post(200)
	if w.seen() != 1 {
		t.Errorf("the provider saw %d", w.seen())
	}
}
