package store_test

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
	"strings"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// proc is the test binary run again as another program on the same Store.
type proc struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// start runs a role of child with arguments; it is killed when the test ends.
func start(t testing.TB, role, dir string, args ...string) *proc {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &proc{t: t, cmd: exec.Command(exe, append([]string{dir}, args...)...)}
	p.cmd.Env = []string{"STORE_TEST_ROLE=" + role, "PATH=" + os.Getenv("PATH")}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	return p
}

// line reads one line of the child.
func (p *proc) line() string {
	p.t.Helper()
	text, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("child %s: %v", p.cmd.Args[1:], err)
	}
	return strings.TrimSpace(text)
}

func (p *proc) want(text string) {
	p.t.Helper()
	if got := p.line(); got != text {
		p.t.Fatalf("child says %q, want %q", got, text)
	}
}

// tell lets the child go on.
func (p *proc) tell() {
	p.t.Helper()
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		p.t.Fatal(err)
	}
}

// done waits for a clean end.
func (p *proc) done() {
	p.t.Helper()
	p.in.Close()
	rest, _ := io.ReadAll(p.out)
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("child %s: %v: %s", p.cmd.Args[1:], err, rest)
	}
}

// child is what a re-executed test binary does; it gives the exit status.
func child(role string) int {
	dir, args := os.Args[1], os.Args[2:]
	stdin := bufio.NewReader(os.Stdin)
	wait := func() { _, _ = stdin.ReadString('\n') }
	err := roles[role](dir, args, wait)
	if err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		return 1
	}
	return 0
}

var roles = map[string]func(dir string, args []string, wait func()) error{
	"open":     roleOpen,
	"leases":   roleLeases,
	"suspend":  roleSuspend,
	"hold":     roleHold,
	"commits":  roleCommits,
	"claims":   roleClaims,
	"hog":      roleHog,
	"claimed":  roleClaimed,
	"rawunits": roleRawUnits,
	"units":    roleUnits,

	"stationstop": roleStationStop,
}

func childStore(dir string) (*store.Store, error) {
	return store.Open(context.Background(), store.Options{Dir: dir, Program: "child"})
}

// roleOpen is one of many first starts.
func roleOpen(dir string, _ []string, wait func()) error {
	fmt.Println("ready")
	wait()
	s, err := childStore(dir)
	if err != nil {
		return err
	}
	fmt.Println(s.ID())
	return s.Close()
}

// roleLeases takes one lease n times and keeps a counter in a file that is only
// right if nobody else holds the lease meanwhile.
func roleLeases(dir string, args []string, wait func()) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	s, err := childStore(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	witness := filepath.Join(filepath.Dir(dir), "witness")
	fmt.Println("ready")
	wait()
	last := int64(0)
	for i := 0; i < n; {
		l, err := s.Acquire(context.Background(), "contended", time.Minute)
		if fault.Is(err, fault.LeaseHeld) {
			continue
		}
		if err != nil {
			return err
		}
		if l.Epoch <= last {
			return fmt.Errorf("epoch %d after %d", l.Epoch, last)
		}
		last = l.Epoch
		if err := exclusive(witness, l.Epoch); err != nil {
			return err
		}
		if err := s.Release(context.Background(), l); err != nil {
			return err
		}
		i++
	}
	fmt.Println("last", last)
	return nil
}

// exclusive fails when two are in it at one time or epochs do not grow.
func exclusive(witness string, epoch int64) error {
	f, err := os.OpenFile(witness+".in", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("another holder is in: %w", err)
	}
	f.Close()
	data, err := os.ReadFile(witness)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if before, _ := strconv.ParseInt(string(data), 10, 64); before >= epoch {
		return fmt.Errorf("epoch %d after %d", epoch, before)
	}
	if err := os.WriteFile(witness, []byte(strconv.FormatInt(epoch, 10)), 0o600); err != nil {
		return err
	}
	return os.Remove(witness + ".in")
}

// roleSuspend holds a lease of 2 s, prepares a dispatch under it, is stopped by
// the parent past the end, and then tries everything.
func roleSuspend(dir string, _ []string, wait func()) error {
	s, err := childStore(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	d := dispatch("1", "a", "t")
	l, err := s.Acquire(context.Background(), store.TerminalLease("key-a"), 2*time.Second)
	if err != nil {
		return err
	}
	if _, err := s.PrepareDispatch(context.Background(), l, d); err != nil {
		return err
	}
	fmt.Println("prepared")
	wait()
	if l.Live() {
		return errors.New("the lease is live: it would type")
	}
	for name, err := range map[string]error{
		"mark": s.MarkInput(context.Background(), l, d.MessageID),
		"abort": func() error {
			_, err := s.AbortDispatch(context.Background(), l, d.MessageID, "x")
			return err
		}(),
		"cancel": func() error {
			_, err := s.CancelTurn(context.Background(), l, store.TurnCancel{TurnID: d.NewTurnID})
			return err
		}(),
		"prepare": func() error {
			_, err := s.PrepareDispatch(context.Background(), l, dispatch("2", "a", "t"))
			return err
		}(),
	} {
		if !fault.Is(err, fault.LeaseLost) {
			return fmt.Errorf("%s gives %v", name, err)
		}
	}
	lost, err := s.Renew(context.Background(), l)
	if err != nil || len(lost) != 1 {
		return fmt.Errorf("renew gives %v, %v", lost, err)
	}
	fmt.Println("nothing")
	return nil
}

// roleHold takes a lease and waits to be killed.
func roleHold(dir string, args []string, wait func()) error {
	s, err := childStore(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := s.Acquire(context.Background(), args[0], time.Hour); err != nil {
		return err
	}
	fmt.Println("held")
	wait()
	return nil
}

// roleCommits commits once for each line of the parent and says when it began.
func roleCommits(dir string, args []string, wait func()) error {
	s, err := childStore(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for i := range n {
		wait()
		began := time.Now().UnixMicro()
		if err := s.MintOffer(context.Background(), store.NewOffer{Payload: []byte(`{}`), Life: time.Minute}); err != nil { // rings no bell
			return err
		}
		l, err := s.Acquire(context.Background(), "c"+strconv.Itoa(i), time.Minute) // neither
		if err != nil {
			return err
		}
		if args[1] == "ring" {
			if err := s.Release(context.Background(), l); err != nil {
				return err
			}
		}
		fmt.Println(began)
	}
	return nil
}

// roleClaims claims, marks and settles callbacks until none is left, and writes
// the id of each started delivery.
func roleClaims(dir string, args []string, wait func()) error {
	s, err := childStore(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	f := store.RouteFamily{ProfileID: "profile", ControllerSessionID: args[0]}
	fmt.Println("ready")
	wait()
	for {
		l, err := s.Await(context.Background(), "outboxd/test/"+args[0], time.Minute, time.Minute)
		if err != nil {
			return err
		}
		c, ok, err := s.ClaimCallback(context.Background(), l, f, 0)
		if err != nil {
			return err
		}
		if !ok {
			return s.Release(context.Background(), l)
		}
		if err := s.Release(context.Background(), l); err != nil {
			return err
		}
		if l, err = s.Await(context.Background(), "outboxd/test/"+args[0], time.Minute, time.Minute); err != nil {
			return err
		}
		if err := s.MarkStarted(context.Background(), l, c.DeliveryID, c.AttemptID); err != nil {
			return err
		}
		fmt.Println(c.DeliveryID)
		if err := s.Release(context.Background(), l); err != nil {
			return err
		}
		if _, err := s.SettleCallback(context.Background(), store.Outcome{DeliveryID: c.DeliveryID, AttemptID: c.AttemptID,
			Disposition: store.Accepted, AcceptanceID: "a"}); err != nil {
			return err
		}
	}
}

// roleHog writes without a pause until its stdin ends, and tells its longest wait.
func roleHog(dir string, args []string, wait func()) error {
	s, err := childStore(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	fmt.Println("ready")
	wait()
	stop := make(chan struct{})
	go func() { wait(); close(stop) }()
	longest, n := time.Duration(0), 0
	for {
		select {
		case <-stop:
			fmt.Println(n, longest.Milliseconds())
			return nil
		default:
		}
		began := time.Now()
		l, err := s.Acquire(context.Background(), "hog/"+args[0], time.Minute)
		if err != nil {
			return err
		}
		if err := s.Release(context.Background(), l); err != nil {
			return err
		}
		longest, n = max(longest, time.Since(began)/2), n+1
	}
}

// roleClaimed claims one callback, marks it if asked, and waits to be killed.
func roleClaimed(dir string, args []string, wait func()) error {
	s, err := childStore(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	l, err := s.Acquire(context.Background(), "outboxd/test", time.Minute)
	if err != nil {
		return err
	}
	c, ok, err := s.ClaimCallback(context.Background(), l, family, 0)
	if err != nil || !ok {
		return fmt.Errorf("claim gives %t, %w", ok, err)
	}
	if args[0] == "started" {
		if err := s.MarkStarted(context.Background(), l, c.DeliveryID, c.AttemptID); err != nil {
			return err
		}
	}
	fmt.Println(c.AttemptID)
	wait()
	return nil
}

// unitsFor is how long the throughput roles run.
func unitsFor(args []string) time.Duration {
	d, err := time.ParseDuration(args[1])
	if err != nil {
		panic(err)
	}
	return d
}

// roleUnits counts claim, start and settle by the Store.
func roleUnits(dir string, args []string, wait func()) error {
	s, err := childStore(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	l, err := s.Acquire(context.Background(), "outboxd/test/"+args[0], time.Hour)
	if err != nil {
		return err
	}
	f := store.RouteFamily{ProfileID: "profile", ControllerSessionID: args[0]}
	fmt.Println("ready")
	wait()
	n := 0
	for end := time.Now().Add(unitsFor(args)); time.Now().Before(end); n++ {
		c, ok, err := s.ClaimCallback(context.Background(), l, f, 0)
		if err != nil || !ok {
			return fmt.Errorf("claim %d gives %t, %w", n, ok, err)
		}
		if err := s.MarkStarted(context.Background(), l, c.DeliveryID, c.AttemptID); err != nil {
			return err
		}
		if _, err := s.SettleCallback(context.Background(), store.Outcome{DeliveryID: c.DeliveryID, AttemptID: c.AttemptID,
			Disposition: store.Accepted, AcceptanceID: "a"}); err != nil {
			return err
		}
	}
	fmt.Println(n)
	return nil
}

// roleRawUnits does the same three commits with bare statements and the same
// pragmas and retry.
func roleRawUnits(dir string, args []string, wait func()) error {
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "store.db")+"?_txlock=immediate&_busy_timeout=0&_journal_mode=WAL&_foreign_keys=on&_synchronous=FULL&_stmt_cache_size=32")
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	fmt.Println("ready")
	wait()
	n := 0
	for end := time.Now().Add(unitsFor(args)); time.Now().Before(end); n++ {
		if err := rawUnit(db, args[0]); err != nil {
			return err
		}
	}
	fmt.Println(n)
	return nil
}

// rawUnit is one delivery by bare statements: three commits.
func rawUnit(db *sql.DB, session string) error {
	var id string
	if err := rawTx(db, func(tx *sql.Tx) error {
		return tx.QueryRow(`UPDATE callbacks SET status='claimed', attempts=attempts+1, attempt_id='a', claim_expires_at=1 WHERE delivery_id=(
			SELECT delivery_id FROM callbacks WHERE status IN ('pending','retry_wait') AND route_profile_id='profile' AND route_controller_session_id=?
			ORDER BY coalesce(last_attempt_at, created_at), delivery_id LIMIT 1) RETURNING delivery_id`, session).Scan(&id)
	}); err != nil {
		return err
	}
	if err := rawTx(db, func(tx *sql.Tx) error {
		_, err := tx.Exec(`UPDATE callbacks SET transport_started_at=1 WHERE delivery_id=? AND status='claimed' AND attempt_id='a'`, id)
		return err
	}); err != nil {
		return err
	}
	return rawTx(db, func(tx *sql.Tx) error {
		_, err := tx.Exec(`UPDATE callbacks SET status='accepted', acceptance_id='a', attempt_id=NULL, claim_expires_at=NULL WHERE delivery_id=? AND attempt_id='a'`, id)
		return err
	})
}

func rawTx(db *sql.DB, fn func(*sql.Tx) error) error {
	for {
		tx, err := db.Begin()
		if err != nil {
			if strings.Contains(err.Error(), "locked") {
				time.Sleep(700 * time.Microsecond)
				continue
			}
			return err
		}
		if err := fn(tx); err != nil {
			tx.Rollback()
			return err
		}
		return tx.Commit()
	}
}
