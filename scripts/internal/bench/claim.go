package bench

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/mattn/go-sqlite3"
	"golang.org/x/sync/errgroup"

	"drawbridge/scripts/internal/demohost"
	"drawbridge/shared/callback"
	"drawbridge/shared/profile"
	"drawbridge/shared/store"
)

const (
	claimProcesses = 3 // bridge, watchd and outboxd share a Store
	claimRounds    = 3
	claimsEach     = 300 // of one process in one round
)

// claim compares pairs of claim and settlement through package store with the
// same rows changed by plain SQL. Each side is driven by processes of their own
// on one Store of our schema; each process has a route family for itself.
func claim(ctx context.Context, s *stand) ([]Figure, error) {
	template := s.below("claims", "template")
	if err := seedClaims(ctx, template); err != nil {
		return nil, err
	}
	var ours, base samples
	for round := range claimRounds {
		for _, side := range []struct {
			role string
			into *samples
		}{{roleStore, &ours}, {roleRaw, &base}} {
			dir := s.below("claims", side.role+strconv.Itoa(round))
			if err := copyStore(template, dir); err != nil {
				return nil, err
			}
			rate, err := s.drive(ctx, side.role, dir)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", side.role, err)
			}
			*side.into = append(*side.into, rate)
		}
	}
	n := claimRounds * claimProcesses * claimsEach
	return []Figure{newFigure("claim", "units/s", n, ours.median(), base.median()).ratioLeast(0.7)}, nil
}

// family names the controller session of the i-th process.
func family(i int) string { return "session-" + strconv.Itoa(i) }

func seedClaims(ctx context.Context, dir string) error {
	db, err := store.Open(ctx, store.Options{Dir: dir, Program: "bench"})
	if err != nil {
		return err
	}
	p, err := profile.Parse(demohost.Profile("/bin/true", "/nowhere"))
	if err != nil {
		return errors.Join(err, db.Close())
	}
	for i := range claimProcesses {
		c, err := profile.Capture(p, profile.Source{}, demohost.HostID, demohost.HostVersion, []string{demohost.SessionVariable + "=" + family(i)})
		if err != nil {
			return errors.Join(err, db.Close())
		}
		words := make([]string, claimsEach)
		for j := range words {
			words[j] = fmt.Sprintf("claim-%d-%d", i, j)
		}
		if err := fill(ctx, db, c.Route, words); err != nil {
			return errors.Join(err, db.Close())
		}
	}
	return db.Close() // the last connection writes the log back into the file
}

func copyStore(from, to string) error {
	data, err := os.ReadFile(filepath.Join(from, "store.db"))
	if err != nil {
		return fmt.Errorf("copy the Store: %w", err)
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("copy the Store: %w", err)
	}
	return os.WriteFile(filepath.Join(to, "store.db"), data, 0o600)
}

// drive runs the processes of one side at the same time and gives the pairs per
// second until the last has ended.
func (s *stand) drive(ctx context.Context, role, dir string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	var g errgroup.Group
	ready, begin := make(chan error, claimProcesses), make(chan struct{})
	for i := range claimProcesses {
		cmd := exec.CommandContext(ctx, s.opts.Self, "role", role, dir, strconv.Itoa(i), strconv.Itoa(claimsEach))
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return 0, err
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			return 0, err
		}
		g.Go(func() error {
			if err := cmd.Start(); err != nil {
				ready <- err
				return err
			}
			_, err := bufio.NewReader(stdout).ReadString('\n')
			ready <- err
			<-begin
			return errors.Join(err, stdin.Close(), cmd.Wait())
		})
	}
	var failed error
	for range claimProcesses {
		failed = errors.Join(failed, <-ready)
	}
	at := time.Now()
	close(begin)
	if err := errors.Join(failed, g.Wait()); err != nil {
		return 0, err
	}
	return claimProcesses * claimsEach / time.Since(at).Seconds(), nil
}

// runClaims is the body of both roles: prepare, say so, wait for the end of
// stdin, and do count pairs.
func runClaims(dir, number, count string, side func(ctx context.Context, dir string, family int) (unit func() error, end func() error, err error)) error {
	i, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	unit, end, err := side(context.Background(), dir, i)
	if err != nil {
		return err
	}
	if _, err := os.Stdout.WriteString("ready\n"); err != nil {
		return errors.Join(err, end())
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return errors.Join(err, end())
	}
	for range n {
		if err := unit(); err != nil {
			return errors.Join(err, end())
		}
	}
	return end()
}

// storeClaims does a unit as outboxd does, but for the child.
func storeClaims(ctx context.Context, dir string, i int) (unit, end func() error, err error) {
	db, err := store.Open(ctx, store.Options{Dir: dir, Program: "bench"})
	if err != nil {
		return nil, nil, err
	}
	f := store.RouteFamily{ProfileID: profileID, ControllerSessionID: family(i)}
	lease, err := db.Acquire(ctx, store.OutboxdLease(f.ProfileID, f.ControllerSessionID), time.Minute)
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	unit = func() error {
		row, ok, err := db.ClaimCallback(ctx, lease, f, store.ClaimTTLLeast)
		if err == nil && !ok {
			err = errors.New("no row is due")
		}
		if err != nil {
			return err
		}
		_, err = db.SettleCallback(ctx, store.Outcome{
			DeliveryID: row.DeliveryID, AttemptID: row.AttemptID, Disposition: string(callback.Accepted),
			AcceptanceID: "acceptance", Evidence: []byte(`{}`),
		})
		return err
	}
	return unit, db.Close, nil
}

// profileID is that of the example Host's Profile.
const profileID = "demo-host-inbox"

// Plain statements for the same changes: the row that waits longest, its contents,
// and the attempt beside it. No lease, no fence, no rule between rows of one Watch.
const (
	rawClaim = `
UPDATE callbacks
SET status = 'claimed', attempts = attempts + 1, attempt_id = ?1, claim_holder = 'bench', claim_epoch = 1, claim_expires_at = ?2, last_attempt_at = ?2, updated_at = ?2
WHERE delivery_id = (
  SELECT delivery_id
  FROM callbacks
  WHERE status IN ('pending','retry_wait') AND route_profile_id = ?3 AND route_controller_session_id = ?4
  ORDER BY coalesce(last_attempt_at, created_at), delivery_id
  LIMIT 1)
RETURNING delivery_id, message_id, body, envelope_json, attempts`
	rawBegin  = `INSERT INTO callback_attempts(delivery_id, number, attempt_id, holder, claim_epoch, claimed_at) VALUES (?1, ?2, ?3, 'bench', 1, ?4)`
	rawSettle = `UPDATE callbacks SET status = 'accepted', attempt_id = NULL, claim_expires_at = NULL, accepted_at = ?2, acceptance_id = 'acceptance', updated_at = ?2 WHERE delivery_id = ?1`
	rawEnd    = `UPDATE callback_attempts SET ended_at = ?2, disposition = 'accepted', acceptance_id = 'acceptance', evidence_json = '{}' WHERE attempt_id = ?1`
)

// rawClaims does a unit with SQLite alone.
func rawClaims(ctx context.Context, dir string, i int) (unit, end func() error, err error) {
	db, err := openRaw(filepath.Join(dir, "store.db"))
	if err != nil {
		return nil, nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	r := &rawStore{conn: conn, prepared: map[string]*sql.Stmt{}}
	for _, q := range []string{rawClaim, rawBegin, rawSettle, rawEnd, "BEGIN IMMEDIATE", "COMMIT"} {
		if r.prepared[q], err = conn.PrepareContext(ctx, q); err != nil {
			return nil, nil, errors.Join(err, db.Close())
		}
	}
	next := 0
	unit = func() error {
		var row struct {
			id, message, body, envelope string
			attempts                    int64
		}
		attempt, now := fmt.Sprintf("attempt-%d-%d", i, next), time.Now().UnixMilli()
		next++
		err := r.transact(func() error {
			found := r.prepared[rawClaim].QueryRow(attempt, now, profileID, family(i))
			if err := found.Scan(&row.id, &row.message, &row.body, &row.envelope, &row.attempts); err != nil {
				return err
			}
			return r.exec(rawBegin, row.id, row.attempts, attempt, now)
		})
		if err != nil {
			return err
		}
		return r.transact(func() error {
			return errors.Join(r.exec(rawSettle, row.id, now), r.exec(rawEnd, attempt, now))
		})
	}
	return unit, func() error { return errors.Join(conn.Close(), db.Close()) }, nil
}

// rawStore is one connection with its prepared statements.
type rawStore struct {
	conn     *sql.Conn
	prepared map[string]*sql.Stmt
}

func (r *rawStore) exec(query string, args ...any) error {
	_, err := r.prepared[query].Exec(args...)
	return err
}

// transact waits for the write lock as the Store does.
func (r *rawStore) transact(f func() error) error {
	for {
		err := r.exec("BEGIN IMMEDIATE")
		var e sqlite3.Error
		if errors.As(err, &e) && e.Code == sqlite3.ErrBusy {
			time.Sleep(200*time.Microsecond + rand.N(time.Millisecond))
			continue
		}
		if err != nil {
			return err
		}
		return errors.Join(f(), r.exec("COMMIT"))
	}
}
