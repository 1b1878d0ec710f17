package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/scripts/internal/inbox"
	"drawbridge/scripts/internal/rig"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
)

// leaseOver is longer than the longest lease, which is that of a terminal.
const leaseOver = store.TerminalTTL + 30*time.Second

// rows opens the world's Store for reading, as no Host can.
func (w *world) rows() *store.Store {
	w.t.Helper()
	s, err := store.Open(w.t.Context(), store.Options{Dir: w.store, Program: "test", ReadOnly: true})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

// turnOf finds the Turn of a request.
func (w *world) turnOf(s *store.Store, request string) store.Turn {
	w.t.Helper()
	turns, err := s.Turns(w.t.Context(), store.TurnFilter{Limit: 100})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, turn := range turns {
		if turn.RequestText == request {
			return turn
		}
	}
	return store.Turn{}
}

// becomes waits until the Turn of a request has the status.
func (w *world) becomes(s *store.Store, request, status string) store.Turn {
	w.t.Helper()
	var turn store.Turn
	w.eventually(request+" is "+status, func() bool { turn = w.turnOf(s, request); return turn.Status == status })
	return turn
}

// halted reports whether a process is stopped.
func halted(pid int) bool {
	info, err := process.Stat(pid)
	return err == nil && info.State == 'T'
}

// awaitHalted waits for the one stopped program of that name and gives its pid.
func (w *world) awaitHalted(name string) (pid int) {
	w.t.Helper()
	w.eventually(name+" stands still", func() bool {
		for _, inc := range w.programs(name) {
			if halted(inc.PID) {
				pid = inc.PID
				return true
			}
		}
		return false
	})
	return pid
}

// awaitOver waits until no lease of that kind lives that a process holds.
func (w *world) awaitOver(s *store.Store, kind string, pid int) {
	w.t.Helper()
	w.rig.Eventually(leaseOver, fmt.Sprintf("the %s leases of %d end", kind, pid), func() bool {
		all, err := s.Leases(w.t.Context(), kind)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, l := range all {
			if strings.Contains(l.Holder, fmt.Sprintf("/%d/", pid)) && l.Live {
				return false
			}
		}
		return true
	})
}

// wake lets a stopped process go on.
func (w *world) wake(pid int) {
	w.t.Helper()
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		w.t.Fatal(err)
	}
}

// A bridge stands still in the middle of a submission (SIGSTOP, a suspended
// laptop) for longer than its lease of the terminal lasts, and wakes up. Until then
// nobody else types into the pane, for it still has the kernel's lock; then it
// neither types nor commits anything more, and recovery ends the Turn by what is
// proven.
//
// Proves core 19.5 and 19.6 with the real bridge.
func TestStopped_BridgeInSubmission(t *testing.T) {
	w := newWorld(t)
	type submission struct {
		point  string
		status string // where the Turn ends
		turns  int    // how often the model got the request
		draft  bool   // the text stands in the composer
		pane   *rig.Pane
		host   *host
		answer chan error
	}
	all := []*submission{
		{point: "prepared", status: "closed"},
		{point: "input_marked", status: "stalled"},
		{point: "text_injected", status: "stalled", draft: true},
		{point: "enter_pressed", status: "idle", turns: 1},
	}
	w.start() // its watchd sweeps
	plain, rows := w.bin, w.rows()
	for _, x := range all {
		x.pane = w.codex("0.171.0")
		w.stopAt("bridge", x.point)
		x.host, x.answer = w.host("session-"+x.point), make(chan error, 1)
		request, id := args{"terminal_id": w.terminal(x.pane), "request": "SCN=SAY:" + x.point}, x.host
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 3*leaseOver)
			defer cancel()
			_, err := id.Call(ctx, "send", request)
			x.answer <- err
		}()
		w.eventually("bridge stands still at "+x.point, func() bool { return halted(x.host.PID()) })
	}
	w.bin = plain

	r := w.start().try("send", args{"terminal_id": w.terminal(all[1].pane), "request": "SCN=SAY:another"})
	if !r.Refused || r.Data["code"] != "terminal_busy" {
		t.Errorf("another bridge's send: %s", r.Text)
	}
	for _, x := range all {
		w.awaitOver(rows, "terminal/", x.host.PID())
	}
	for _, x := range all { // the lease has gone, the lock has not: nobody decides yet
		want, status := "prepared", "waiting_for_agent"
		switch {
		case x.draft:
			want = "text_injected"
		case x.turns > 0: // but for the agent's own record: a monitor needs no pane to read it
			want, status = "agent_accepted", "idle"
		}
		turn := w.turnOf(rows, "SCN=SAY:"+x.point)
		if d, err := rows.Dispatch(t.Context(), turn.CurrentMessageID); err != nil || d.Status != want || turn.Status != status {
			t.Errorf("%s: while it stands still the message is %s, the turn %s: %v", x.point, d.Status, turn.Status, err)
		}
		w.wake(x.host.PID())
	}
	for _, x := range all {
		if err := <-x.answer; err != nil {
			t.Errorf("%s: the call was not answered: %v", x.point, err)
		}
		request := "SCN=SAY:" + x.point
		turn := w.becomes(rows, request, x.status)
		if got := w.rig.Server.Turns(request); got != x.turns {
			t.Errorf("%s: the request reached the model %d times, want %d", x.point, got, x.turns)
		}
		if got := strings.Contains(x.pane.Screen().Text, request); x.turns == 0 && got != x.draft {
			t.Errorf("%s: the text stands in the pane: %v, want %v", x.point, got, x.draft)
		}
		if x.turns > 0 {
			x.host.await(1)
		}
		if x.status == "stalled" {
			x.host.call("close", args{"turn_id": turn.ID})
			x.pane.Key("C-u")
		}
		x.pane.AwaitIdle()
		w.send(x.pane, "SCN=SAY:after_"+x.point)
		w.becomes(rows, "SCN=SAY:after_"+x.point, "idle")
	}
}

// watchd stands still when it has reserved an approval that the policy allows and
// has not pressed its key yet. Another watchd takes over all Turns; the first one
// wakes up when its leases have gone, presses nothing and commits nothing.
//
// Proves core 19.5 and 19.21 with the real watchd, and core 19.53 for the policy.
func TestStopped_WatchdInApproval(t *testing.T) {
	w := newWorld(t)
	asked, busy := w.codex("0.171.0"), w.codex("0.171.0")
	policy, err := json.Marshal(map[string]any{"enabled": true, "rules": []map[string]any{{
		"id": "touch", "agents": []string{"codex"}, "workspaces": []string{asked.Dir},
		"commands": [][]string{{"touch", "approved-stopped.txt"}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(w.rig.Dir, "policy.json")
	if err := os.WriteFile(file, policy, 0o600); err != nil {
		t.Fatal(err)
	}
	plain := w.bin
	w.stopAt("watchd", "approval_reserved")
	w.options.args = []string{"--approval-policy", file}
	w.start()
	rows := w.rows()
	w.eventually("the first watchd sweeps", func() bool {
		all, err := rows.Leases(t.Context(), store.WatchdLease())
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 1 && all[0].Live
	})
	w.bin, w.options.args = plain, nil
	w.host("session-two") // its watchd stands by

	gate := w.send(busy, "SCN=GATE:stopped")
	sent := w.send(asked, "SCN=EXECDIR:stopped")
	pid := w.awaitHalted("watchd")
	w.rig.Release("stopped")
	w.awaitCallback(gate["turn_id"], "accepted") // by the other watchd
	w.awaitOver(rows, "terminal/", pid)
	w.awaitOver(rows, "monitor/", pid)
	w.wake(pid)

	var approvals []store.Approval
	w.eventually("the approval is in doubt", func() bool {
		if approvals, err = rows.Approvals(t.Context(), text(sent["turn_id"])); err != nil {
			t.Fatal(err)
		}
		return len(approvals) == 1 && approvals[0].State == store.ApprovalUncertain
	})
	if _, err := os.Stat(filepath.Join(asked.Dir, "approved-stopped.txt")); !os.IsNotExist(err) {
		t.Errorf("the command ran: %v", err)
	}
	asked.AwaitText("Would you like to run the following command?")
	asked.Key("y")
	w.becomes(rows, "SCN=EXECDIR:stopped", "idle")
	w.awaitCallback(sent["turn_id"], "accepted")
	w.once()
	if got := w.rig.Server.Turns("SCN=EXECDIR:stopped"); got != 1 {
		t.Errorf("the request reached the model %d times", got)
	}
}

// nextBoot makes the Hosts that start from now on, with their siblings, live on a
// machine that was started a minute ago: another boot id, and a boot-time clock
// that begins anew. It needs a time and a mount namespace.
func (w *world) nextBoot() {
	w.t.Helper()
	const place = "/proc/sys/kernel/random/boot_id"
	file := filepath.Join(w.rig.Dir, "boot_id")
	const next = "11111111-2222-4333-8444-555555555555"
	if err := os.WriteFile(file, []byte(next+"\n"), 0o644); err != nil {
		w.t.Fatal(err)
	}
	flags := []string{"--time", "--boottime", fmt.Sprint(60 - process.BootTime()/1000), "--mount"}
	if os.Getuid() != 0 {
		flags = append(flags, "--map-root-user")
	}
	line := fmt.Sprintf("unshare %s sh -c 'mount --bind %s %s && exec \"$0\" \"$@\"'", strings.Join(flags, " "), file, place)
	out, err := exec.Command("sh", "-c", line+" cat "+place+" /proc/uptime").CombinedOutput()
	if lines := strings.Fields(string(out)); err != nil || len(lines) != 3 || lines[0] != next || !strings.HasPrefix(lines[1], "6") || len(lines[1]) != len("60.00") {
		why := fmt.Sprintf("no time and mount namespaces here: %v: %s", err, out)
		if os.Getenv("CI") == "true" {
			w.t.Fatal(why)
		}
		w.t.Skip(why)
	}
	bin, err := programs()
	if err != nil {
		w.t.Fatal(err)
	}
	w.wrap(bin, "bridge", "exec "+line)
}

// The machine loses power with four things under way: an agent that had written
// its end, one that had not, a callback that had been started, and a watch. After
// the next boot other processes have the pane ids of the dead ones. Every lease of
// the old boot is void at once; what is on disk decides: the first Turn is done and
// told once, the second is stalled, the callback is uncertain and never repeated,
// the Watch ends; and nobody types into the new panes what was meant for the old.
//
// Proves core 19.10's last part with the built programs.
func TestReboot(t *testing.T) {
	w := newWorld(t)
	w.nextBoot() // skips where it cannot be had
	after := w.bin
	w.bin, _ = programs()
	const done, lost, told, next = "SCN=GATE:done", "SCN=GATE:lost", "SCN=SAY:told", "SCN=SAY:next"
	panes := []*rig.Pane{w.codex("0.171.0"), w.codex("0.171.0"), w.codex("0.171.0"), w.codex("0.171.0")}
	h, rows := w.start(), w.rows()
	w.send(panes[0], done)
	w.send(panes[1], lost)
	panes[3].Submit("SCN=GATE:human")
	w.eventually("three turns run", func() bool {
		return w.rig.Server.Waiting("done") == 1 && w.rig.Server.Waiting("lost") == 1 && w.rig.Server.Waiting("human") == 1
	})
	watch := args{}
	w.eventually("a watch can be had", func() bool {
		r := h.try("watch", args{"terminal_id": w.terminal(panes[3])})
		watch, _ = r.Data["watch"].(args)
		return !r.Refused
	})
	h.script(inbox.Hang)
	w.send(panes[2], told)
	w.eventually("the callback runs", func() bool { return len(h.attempts()) == 1 })

	w.powerOff(h)
	w.rig.Release("done")
	panes[0].AwaitText("GATE answer done")
	w.rig.Tmux("kill-server")
	w.eventually("the agents are gone", func() bool { return len(rig.Members(w.rig.Dir)) == 0 })
	held, err := rows.Leases(t.Context(), "watchd/")
	if err != nil || len(held) != 1 || held[0].Holder == "" {
		t.Fatalf("the leases of the old boot: %+v %v", held, err)
	}

	w.rig.Tmux("new-session", "-d", "-s", "keep", "exec sleep 86400") // %0 again
	fresh := []*rig.Pane{w.codex("0.171.0"), w.codex("0.171.0")}
	for i, p := range fresh {
		if p.ID != panes[i].ID {
			t.Fatalf("pane %s came again as %s", panes[i].ID, p.ID)
		}
	}
	w.bin = after
	h.script()
	began := time.Now()
	h = w.again(h)
	first := w.becomes(rows, done, "idle")
	if took := time.Since(began); took > store.LeaseTTL-2*time.Second {
		t.Errorf("the leases of the old boot held the new programs up for %v", took)
	}
	second := w.becomes(rows, lost, "stalled")
	w.becomes(rows, told, "idle")
	w.awaitCallback(first.ID, "accepted")
	w.eventually("the watch has ended", func() bool {
		row, err := rows.Watch(t.Context(), text(watch["watch_id"]))
		return err == nil && row.Status == store.WatchInvalidated
	})
	w.awaitCallback(w.turnOf(rows, told).ID, "uncertain")
	for _, p := range fresh {
		if s := p.Screen(); !s.Idle() || strings.Contains(s.Text, "SCN=") {
			t.Errorf("the new pane %s shows\n%s", p.ID, s.Text)
		}
	}
	h.call("close", args{"turn_id": second.ID})
	w.send(fresh[0], next)
	w.becomes(rows, next, "idle")
	w.awaitCallback(w.turnOf(rows, next).ID, "accepted")
	for request, want := range map[string]int{done: 1, lost: 1, told: 1, next: 1} {
		if got := w.rig.Server.Turns(request); got != want {
			t.Errorf("%s reached the model %d times", request, got)
		}
	}
	w.once()
}

// powerOff ends all programs of a Host at one moment: nobody restarts anybody or
// releases anything.
func (w *world) powerOff(h *host) {
	w.t.Helper()
	if err := unix.Kill(h.PID(), unix.SIGSTOP); err != nil { // or it would start its siblings again
		w.t.Fatal(err)
	}
	for _, inc := range w.programs("watchd", "outboxd", "inbox", "bridge") {
		if err := process.Signal(inc, unix.SIGKILL); err != nil {
			w.t.Fatal(err)
		}
	}
	<-h.Exited()
	w.eventually("all programs are gone", func() bool { return len(w.programs("watchd", "outboxd", "inbox", "bridge")) == 0 })
}
