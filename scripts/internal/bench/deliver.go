package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"drawbridge/scripts/internal/demohost"
	"drawbridge/shared/callback"
	"drawbridge/shared/profile"
	"drawbridge/shared/store"
)

const (
	deliveries    = 120 // of one round
	deliverRounds = 5
	deliverAtOnce = 4 // attempts that outboxd makes at one time
)

// deliver compares outboxd on a full outbox with a loop that starts the same
// executable and makes three small commits around it, as many at a time.
func deliver(ctx context.Context, s *stand) ([]Figure, error) {
	d := &delivery{s: s, store: s.below("outbox", "store"), inbox: s.below("outbox", "inbox")}
	if err := d.prepare(); err != nil {
		return nil, err
	}
	raw, err := openRaw(filepath.Join(s.below("outbox"), "raw.db"))
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	if _, err := raw.Exec(`CREATE TABLE units(id TEXT PRIMARY KEY, state TEXT, at INTEGER) STRICT`); err != nil {
		return nil, fmt.Errorf("make the table of the baseline: %w", err)
	}
	var ours, base samples
	for range deliverRounds {
		rate, err := d.ours(ctx)
		if err != nil {
			return nil, err
		}
		ours = append(ours, rate)
		if rate, err = d.base(ctx, raw); err != nil {
			return nil, err
		}
		base = append(base, rate)
	}
	f := newFigure("deliver", "deliveries/s", deliverRounds*deliveries, ours.median(), base.median())
	return []Figure{f.ratioLeast(0.7)}, nil
}

// delivery is one outbox with its Profile.
type delivery struct {
	s        *stand
	store    string
	inbox    string
	captured profile.Captured
}

func (d *delivery) prepare() error {
	var err error
	if err = os.MkdirAll(d.inbox, 0o700); err != nil {
		return err
	}
	path := filepath.Join(filepath.Dir(d.inbox), "profile.json")
	if err = os.WriteFile(path, demohost.Profile(d.s.opts.Stamp, d.inbox), 0o600); err != nil {
		return err
	}
	d.captured, err = capture(path)
	return err
}

func capture(path string) (profile.Captured, error) {
	p, src, err := profile.Load(path, profile.BuiltIns())
	if err != nil {
		return profile.Captured{}, fmt.Errorf("load the Profile: %w", err)
	}
	c, err := profile.Capture(p, src, demohost.HostID, demohost.HostVersion, []string{demohost.SessionVariable + "=bench-session"})
	if err != nil {
		return profile.Captured{}, fmt.Errorf("capture the Profile: %w", err)
	}
	return c, nil
}

// ours fills the outbox, starts outboxd, and gives the rate at which the
// executable is started.
func (d *delivery) ours(ctx context.Context) (rate float64, err error) {
	db, err := store.Open(ctx, store.Options{Dir: d.store, Program: "bench"})
	if err != nil {
		return 0, err
	}
	words := make([]string, deliveries)
	for i := range words {
		words[i] = d.s.newWord()
	}
	if err := errors.Join(fill(ctx, db, d.captured.Route, words), db.Close()); err != nil {
		return 0, err
	}
	cmd := exec.Command(filepath.Join(d.s.opts.Bin, "outboxd"), "serve", "-store-dir", d.store,
		"-runtime-dir", filepath.Join(filepath.Dir(d.store), "run"), "-log-level", "error")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.s.rig.Home()}, d.captured.Relay()...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start outboxd: %w", err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if ended := cmd.Wait(); err == nil && ended != nil {
			err = fmt.Errorf("stop outboxd: %w", ended)
		}
	}()
	return d.rate(ctx, filepath.Join(d.inbox, stampFile), words)
}

// rate waits for all words and gives their number through the time between the
// first and the last, per second.
func (d *delivery) rate(ctx context.Context, file string, words []string) (float64, error) {
	var at []int64
	err := until(ctx, patience, "everything is delivered", func() (bool, error) {
		seen, err := stamps(file)
		at = at[:0]
		for _, w := range words {
			if ns, ok := seen[w]; ok {
				at = append(at, ns)
			}
		}
		return len(at) == len(words), err
	})
	if err != nil {
		return 0, err
	}
	return float64(len(at)-1) / time.Duration(slices.Max(at)-slices.Min(at)).Seconds(), nil
}

// base does as much without drawbridge.
func (d *delivery) base(ctx context.Context, raw *sql.DB) (float64, error) {
	var g errgroup.Group
	g.SetLimit(deliverAtOnce)
	words := make([]string, deliveries)
	for i := range words {
		word := d.s.newWord()
		words[i] = word
		g.Go(func() error {
			commit := func(query string) error {
				_, err := raw.Exec(query, word, time.Now().UnixMilli())
				return err
			}
			if err := commit(`INSERT INTO units(id, state, at) VALUES (?, 'claimed', ?)`); err != nil {
				return err
			}
			if err := commit(`UPDATE units SET state = 'started', at = ?2 WHERE id = ?1`); err != nil {
				return err
			}
			cmd := exec.CommandContext(ctx, d.s.opts.Stamp, "-dir", d.inbox)
			cmd.Env, cmd.Stdin = []string{}, strings.NewReader(word)
			if _, err := cmd.Output(); err != nil {
				return err
			}
			return commit(`UPDATE units SET state = 'accepted', at = ?2 WHERE id = ?1`)
		})
	}
	if err := g.Wait(); err != nil {
		return 0, fmt.Errorf("deliver without drawbridge: %w", err)
	}
	return d.rate(ctx, filepath.Join(d.inbox, stampFile), words)
}

// fill puts one callback row for each word into the outbox: each ends a Watch of
// its own, since those of one Watch are delivered one after the other.
func fill(ctx context.Context, db *store.Store, route callback.Route, words []string) error {
	for i, word := range words {
		if err := fillOne(ctx, db, route, word); err != nil {
			return fmt.Errorf("fill the outbox: row %d: %w", i, err)
		}
	}
	return nil
}

func fillOne(ctx context.Context, db *store.Store, route callback.Route, word string) error {
	id, key := "terminal-watch-"+word, "key-"+word
	lease, err := db.Acquire(ctx, store.TerminalLease(key), store.TerminalTTL)
	if err != nil {
		return err
	}
	w, err := db.CreateWatch(ctx, lease, store.NewWatch{
		WatchID: id, Agent: "codex", Mode: store.ModeTerminalActivity, TerminalID: "terminal-" + word, TerminalKey: key,
		Endpoint: []byte(`{}`), Workspace: "/w", BindingToken: "token", IdentityFingerprint: "identity-" + word, Anchor: []byte(`{}`),
		AnchorFingerprint: "anchor-" + word, Checkpoint: []byte(`{}`), ControllerSessionID: route.ControllerSessionID,
		Route: route.Canonical(), Lifetime: time.Hour.Milliseconds(),
	})
	if err != nil {
		return err
	}
	if err := db.Release(ctx, lease); err != nil {
		return err
	}
	const kind = store.WatchCancelled
	evidence := strings.Repeat("0", 64)
	note := callback.WatchNotificationID(w.ID, kind, evidence)
	env := callback.WatchEnvelope(route, callback.WatchSource(w.ID, w.TerminalID), callback.Event{
		ID: note, Type: callback.EventCancelled, Body: "the watch ended " + word,
	})
	_, err = db.SettleWatch(ctx, store.WatchFence{
		WatchID: w.ID, IdentityFingerprint: w.IdentityFingerprint, AnchorFingerprint: w.AnchorFingerprint, ObservedAt: db.Now(),
	}, store.WatchSettlement{Status: kind, Notification: store.NewNotification{
		NotificationID: note, Kind: kind, EvidenceFingerprint: evidence, ReasonCode: "bench",
		Callback: store.NewCallback{
			DeliveryID: env.DeliveryID, IdempotencyKey: env.IdempotencyKey, Lane: callback.LaneWatch, Kind: kind, MessageID: env.Event.ID,
			EventType: env.Event.Type, RequiresResponse: env.Event.RequiresResponse, Body: env.Event.Body, Envelope: env.Canonical(),
			RouteTransport: route.Transport, RouteProfileID: route.ProfileID, RouteProfileRevision: route.ProfileRevision,
			RouteControllerSessionID: route.ControllerSessionID,
		},
	}})
	return err
}

// openRaw opens a database with the Store's pragmas, one connection.
func openRaw(path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite3", "file:"+path+"?_journal_mode=WAL&_synchronous=FULL&_foreign_keys=on&_txlock=immediate&_busy_timeout=0&_stmt_cache_size=128")
	if err != nil {
		return nil, fmt.Errorf("open the baseline's database: %w", err)
	}
	db.SetMaxOpenConns(1)
	return db, nil
}
