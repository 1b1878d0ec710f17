package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/store"
)

// fill puts n pending callbacks of each controller session into the outbox.
func (w *world) fill(sessions []string, n int) {
	w.t.Helper()
	w.prepare("1", "a", "t1").accept("t1").finish("1")
	db := w.raw()
	for _, s := range sessions {
		must(w.t, db, fmt.Sprintf(`INSERT INTO turns SELECT turn_id||'-%[1]s-'||i,session_id,1,'idle',agent,workspace,binding_id,binding_generation,native_thread_id,
			terminal_key,controller_session_id,route_json,request_text,NULL,0,50,100,1,1,60,720,10080,1,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,NULL,NULL,NULL,1,1
			FROM turns, (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < %[2]d) SELECT i FROM n) WHERE turn_id='turn-1'`, s, n))
		must(w.t, db, fmt.Sprintf(`INSERT INTO callbacks(delivery_id,idempotency_key,lane,kind,turn_id,message_id,event_type,requires_response,body,envelope_json,
			route_transport,route_profile_id,route_profile_revision,route_controller_session_id,status,created_at,updated_at)
			SELECT 'd-%[1]s-'||i,'i-%[1]s-'||i,'turn_lifecycle','completion','turn-1-%[1]s-'||i,'m','done',0,hex(randomblob(400)),'{}','x','profile','1','%[1]s','pending',i,i
			FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < %[2]d) SELECT i FROM n)`, s, n))
	}
}

// Four processes share the outbox: every delivery is started exactly once.
func TestProcesses_ClaimIsNeverDoubled(t *testing.T) {
	w := newWorld(t)
	const n = 300
	w.fill([]string{"s"}, n)
	procs := make([]*proc, 4)
	for i := range procs {
		procs[i] = start(t, "claims", w.dir, "s")
		procs[i].want("ready")
	}
	for _, p := range procs {
		p.tell()
	}
	seen := map[string]int{}
	for _, p := range procs {
		for {
			line, err := p.out.ReadString('\n')
			if err != nil {
				break
			}
			seen[strings.TrimSpace(line)]++
		}
		p.done()
	}
	for id, times := range seen {
		if times != 1 {
			t.Errorf("%s was started %d times", id, times)
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d were started", len(seen), n)
	}
	if got, err := w.CallbackCounts(ctx); err != nil || len(got) != 2 || got[0].Count != n || got[0].Status != store.CallbackAccepted {
		t.Error(got, err)
	}
}

// Five processes that write without a pause do not starve each other: SQLite's own
// busy handler let one wait 4 s, which is near the end of a lease.
func TestProcesses_NobodyStarves(t *testing.T) {
	w := newWorld(t)
	procs := make([]*proc, 5)
	for i := range procs {
		procs[i] = start(t, "hog", w.dir, fmt.Sprint(i))
		procs[i].want("ready")
	}
	for _, p := range procs {
		p.tell()
	}
	time.Sleep(3 * time.Second) // the measured time itself
	for _, p := range procs {
		p.tell()
	}
	for i, p := range procs {
		var n, longest int
		if _, err := fmt.Sscan(p.line(), &n, &longest); err != nil {
			t.Fatal(err)
		}
		t.Logf("process %d: %d pairs of writes, the longest %d ms a write", i, n, longest)
		if longest > 2000 || n < 20 {
			t.Errorf("process %d starved: %d writes, longest %d ms", i, n, longest)
		}
		p.done()
	}
}

// Claim, start and settle through the Store keep up with bare statements that make
// the same three commits with the same pragmas, driven by as many processes.
func BenchmarkProcesses_Units(b *testing.B) {
	for _, procs := range []int{1, 3} {
		b.Run(fmt.Sprint(procs), func(b *testing.B) {
			for range b.N {
				units := map[string]int{}
				for _, role := range []string{"rawunits", "units", "rawunits", "units"} {
					units[role] += runUnits(b, role, procs, 2*time.Second)
				}
				b.ReportMetric(float64(units["units"])/4, "units/s")
				b.ReportMetric(float64(units["rawunits"])/4, "raw/s")
				b.ReportMetric(float64(units["units"])/float64(units["rawunits"]), "ratio")
			}
		})
	}
}

func runUnits(b *testing.B, role string, procs int, d time.Duration) (sum int) {
	b.Helper()
	w := &world{t: b, dir: b.TempDir() + "/store", clk: newClock(), gone: map[string]bool{}}
	w.Store = w.open("bridge/1/1/x")
	sessions := make([]string, procs)
	for i := range sessions {
		sessions[i] = fmt.Sprint("s", i)
	}
	w.fill(sessions, 15000/procs)
	must(b, w.raw(), `DROP TRIGGER callbacks_moves`) // the bare statements know no such guard
	w.Store.Close()
	children := make([]*proc, procs)
	for i, s := range sessions {
		children[i] = start(b, role, w.dir, s, d.String())
		children[i].want("ready")
	}
	for _, p := range children {
		p.tell()
	}
	for _, p := range children {
		var n int
		if _, err := fmt.Sscan(p.line(), &n); err != nil {
			b.Fatal(err)
		}
		sum += n
		p.done()
	}
	return sum
}
