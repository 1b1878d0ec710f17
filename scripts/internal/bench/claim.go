package bench

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver of the baseline
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

// Plain statements for the same changes: no lease, no order, no rule.
const (
	rawRows   = `SELECT delivery_id FROM callbacks WHERE route_profile_id = ? AND route_controller_session_id = ?`
	rawClaim  = `UPDATE callbacks SET status = 'claimed', attempts = attempts + 1, attempt_id = ?2, claim_holder = 'bench', claim_epoch = 1, claim_expires_at = ?3, last_attempt_at = ?3, updated_at = ?3 WHERE delivery_id = ?1`
	rawBegin  = `INSERT INTO callback_attempts(delivery_id, number, attempt_id, holder, claim_epoch, claimed_at) VALUES (?1, 1, ?2, 'bench', 1, ?3)`
	rawSettle = `UPDATE callbacks SET status = 'accepted', attempt_id = NULL, claim_expires_at = NULL, accepted_at = ?2, acceptance_id = 'acceptance', updated_at = ?2 WHERE delivery_id = ?1`
	rawEnd    = `UPDATE callback_attempts SET ended_at = ?2, disposition = 'accepted', acceptance_id = 'acceptance', evidence_json = '{}' WHERE attempt_id = ?1`
)

// rawClaims does a unit with SQLite alone.
func rawClaims(ctx context.Context, dir string, i int) (unit, end func() error, err error) {
	db, err := openRaw(filepath.Join(dir, "store.db"))
	if err != nil {
		return nil, nil, err
	}
	fail := func(err error) (func() error, func() error, error) { return nil, nil, errors.Join(err, db.Close()) }
	ids, err := texts(ctx, db, rawRows, profileID, family(i))
	if err != nil {
		return fail(err)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return fail(err)
	}
	prepared := map[string]*sql.Stmt{}
	for _, q := range []string{rawClaim, rawBegin, rawSettle, rawEnd, "BEGIN IMMEDIATE", "COMMIT"} {
		if prepared[q], err = conn.PrepareContext(ctx, q); err != nil {
			return fail(err)
		}
	}
	transact := func(first string, a []any, second string, b []any) error {
		for _, step := range []struct {
			query string
			args  []any
		}{{"BEGIN IMMEDIATE", nil}, {first, a}, {second, b}, {"COMMIT", nil}} {
			if _, err := prepared[step.query].ExecContext(ctx, step.args...); err != nil {
				return fmt.Errorf("%.40s: %w", step.query, err)
			}
		}
		return nil
	}
	next := 0
	unit = func() error {
		id, attempt, now := ids[next], fmt.Sprintf("attempt-%d-%d", i, next), time.Now().UnixMilli()
		next++
		if err := transact(rawClaim, []any{id, attempt, now}, rawBegin, []any{id, attempt, now}); err != nil {
			return err
		}
		return transact(rawSettle, []any{id, now}, rawEnd, []any{attempt, now})
	}
	return unit, func() error { return errors.Join(conn.Close(), db.Close()) }, nil
}

// texts reads the first column of all rows.
func texts(ctx context.Context, db *sql.DB, query string, args ...any) ([]string, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}
