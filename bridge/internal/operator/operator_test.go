package operator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"drawbridge/bridge/internal/catalog"
	"drawbridge/bridge/internal/hostbridge"
	"drawbridge/bridge/internal/operator"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/scripted"
)

const patience = 20 * time.Second

func TestMain(m *testing.M) {
	if scripted.Wanted() {
		os.Exit(scripted.Main())
	}
	testkit.Leak(m)
}

// A desk is a Store and a tmux server of its own, and the commands on them.
type desk struct {
	t               *testing.T
	store, run, tmx string
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	return &desk{t, testkit.StoreDir(t), testkit.RuntimeDir(t), filepath.Join(testkit.RuntimeDir(t), "s")}
}

// answer is how a command ended.
type answer struct {
	out, err string
	status   int
}

func (d *desk) command(stdin string, args ...string) answer {
	d.t.Helper()
	var out, errs bytes.Buffer
	p := service.Program{Name: "bridge", Stdout: &out, Stderr: &errs, Commands: operator.Commands(strings.NewReader(stdin), &out, &errs)}
	status := p.Main(d.t.Context(), args)
	return answer{out.String(), errs.String(), status}
}

// on runs a command on the desk's Store and tmux server.
func (d *desk) on(args ...string) answer {
	d.t.Helper()
	return d.command("", append(args, "-store-dir", d.store, "-runtime-dir", d.run, "-tmux-socket", d.tmx)...)
}

// agent starts a scripted agent and gives its terminal id.
func (d *desk) agent() string {
	d.t.Helper()
	testkit.Need(d.t, "tmux")
	bin, home, work := d.t.TempDir(), d.t.TempDir(), d.t.TempDir()
	exe, err := scripted.Install(bin)
	if err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.Command("tmux", "-S", d.tmx, "-f", "/dev/null", "new-session", "-d", "-s", "one", "-x", "100", "-y", "30", "-c", work,
		"-e", "CODEX_HOME="+home, "-e", "PATH="+bin+":"+os.Getenv("PATH"), "exec "+exe)
	if out, err := cmd.CombinedOutput(); err != nil {
		d.t.Fatalf("%v: %s", err, out)
	}
	d.t.Cleanup(func() { _ = exec.Command("tmux", "-S", d.tmx, "kill-server").Run() })
	id := ""
	testkit.EventuallyNil(d.t, patience, func() error {
		var doc struct {
			Terminals []struct {
				ID      string                     `json:"id"`
				Actions map[string]json.RawMessage `json:"available_actions"`
			} `json:"terminals"`
		}
		if err := json.Unmarshal([]byte(d.on("list", "-json").out), &doc); err != nil {
			return err
		}
		if len(doc.Terminals) != 1 || doc.Terminals[0].Actions["send"] == nil {
			return fmt.Errorf("the agent is not ready: %+v", doc)
		}
		id = doc.Terminals[0].ID
		return nil
	})
	return id
}

// watched makes the Store look as if a watchd served it.
func (d *desk) watched() *store.Store {
	d.t.Helper()
	s, err := store.Open(context.Background(), store.Options{Dir: d.store, Program: "watchd"})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = s.Close() })
	if _, err := s.Acquire(context.Background(), store.WatchdLease(), time.Minute); err != nil {
		d.t.Fatal(err)
	}
	return s
}

// One task from a shell: refused without a watchd, with the command that starts
// one; sent, recorded for the operator, shown, closed.
func TestOperator_Task(t *testing.T) {
	d := newDesk(t)
	id := d.agent()
	got := d.on("send", id, "say hello")
	if got.status != 69 || !strings.Contains(got.err, "[sibling_unavailable]") || !strings.Contains(got.err, "watchd serve -store-dir "+d.store) {
		t.Fatalf("without a watchd: %+v", got)
	}
	if got := d.on("list"); got.status != 0 || !strings.Contains(got.out, "one:0.0") || !strings.Contains(got.out, "No watchd serves this Store") {
		t.Errorf("list: %+v", got)
	}
	s := d.watched()
	if got := d.on("list"); strings.Contains(got.out, "No watchd") || !strings.Contains(got.out, "send") {
		t.Errorf("list: %+v", got)
	}
	got = d.on("send", id, "say hello", "-json")
	var sent struct {
		TurnID   string `json:"turn_id"`
		Outcome  string `json:"submission_outcome"`
		Callback bool   `json:"callback_expected"`
	}
	if err := json.Unmarshal([]byte(got.out), &sent); err != nil || got.status != 0 || sent.Outcome != "agent_accepted" || sent.Callback {
		t.Fatalf("send: %+v, %v", got, err)
	}
	turn, err := s.Turn(t.Context(), sent.TurnID)
	if err != nil || turn.ControllerSessionID != hostbridge.OperatorSession() || turn.Route != nil {
		t.Errorf("the Turn is of %q, route %s, %v", turn.ControllerSessionID, turn.Route, err)
	}
	if got := d.on("status", sent.TurnID); got.status != 0 || !strings.Contains(got.out, sent.TurnID) || !strings.Contains(got.out, "can: ") || !strings.Contains(got.out, "  | ") {
		t.Errorf("status: %+v", got)
	}
	plain, called := d.on("status", sent.TurnID, "-json"), d.on("call", "status", `{"turn_id":"`+sent.TurnID+`"}`, "-json")
	if plain.status != 0 || members(t, plain.out) != members(t, called.out) {
		t.Errorf("status and call status differ:\n%s\n%s", plain.out, called.out)
	}
	if got := d.on("send", "SCN", "once more"); got.status != 1 || !strings.Contains(got.err, "[") {
		t.Errorf("send to no target: %+v", got)
	}
	if got := d.on("close", sent.TurnID, "-reason", "seen"); got.status != 0 || !strings.Contains(got.out, "turn_id: "+sent.TurnID) {
		t.Errorf("close: %+v", got)
	}
}

// members names the members of an object, in order.
func members(t *testing.T, doc string) string {
	t.Helper()
	var names []string
	dec := json.NewDecoder(strings.NewReader(doc))
	if _, err := dec.Token(); err != nil {
		t.Fatalf("%v in %q", err, doc)
	}
	for dec.More() {
		name, err := dec.Token()
		var v json.RawMessage
		if err == nil {
			err = dec.Decode(&v)
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, fmt.Sprint(name))
	}
	return strings.Join(names, " ")
}

// A short ref stands for its id wherever a person types it.
func TestOperator_ShortRef(t *testing.T) {
	d := newDesk(t)
	id := d.agent()
	var doc struct {
		Terminals []struct {
			Ref string `json:"short_ref"`
		} `json:"terminals"`
	}
	if err := json.Unmarshal([]byte(d.on("list", "-json").out), &doc); err != nil {
		t.Fatal(err)
	}
	if got := d.on("status", doc.Terminals[0].Ref); got.status != 0 || !strings.Contains(got.out, id) {
		t.Errorf("status: %+v", got)
	}
	if got := d.on("explain", doc.Terminals[0].Ref); got.status != 0 || !strings.Contains(got.out, id) || !strings.Contains(got.out, "may       send: ") {
		t.Errorf("explain: %+v", got)
	}
	if got := d.on("status", "@0000000000"); got.status != 1 || !strings.Contains(got.err, "[not_found]") {
		t.Errorf("an unknown ref: %+v", got)
	}
	if got := d.on("call", "status", `{"turn_id":"@0000000000"}`); got.status != 1 || !strings.Contains(got.err, "[wrong_id_kind]") {
		t.Errorf("a ref in JSON: %+v", got)
	}
}

// Every tool is reached by its name, dashed or not, and by a command of its own;
// what its schema refuses is refused before any work.
func TestOperator_AllTools(t *testing.T) {
	d := newDesk(t)
	sketches, err := catalog.Sketches()
	if err != nil || len(sketches) != 19 {
		t.Fatalf("%d tools, %v", len(sketches), err)
	}
	for i, k := range sketches {
		name := []string{k.Name, strings.ReplaceAll(k.Name, "_", "-"), catalog.Prefix + k.Name}[i%3]
		got := d.on("call", name, `{"no_such_argument":1}`)
		if got.status != 1 || !strings.Contains(got.err, "[invalid_arguments]") {
			t.Errorf("call %s: %+v", name, got)
		}
		got = d.command("", strings.ReplaceAll(k.Name, "_", "-"), "-h")
		for _, p := range k.Properties {
			flag := strings.ToLower(words.ReplaceAllString(strings.ReplaceAll(p.Name, "_", "-"), "$1-$2"))
			if !strings.Contains(got.out, "  -"+flag+" ") && !strings.Contains(got.out, "  -"+flag+"=") {
				t.Errorf("the help of %s does not name %s:\n%s", k.Name, flag, got.out)
			}
		}
		if got.status != 0 || !strings.Contains(got.out, "-json") {
			t.Errorf("the help of %s: %+v", k.Name, got)
		}
	}
	for _, args := range [][]string{
		{"call", "nothing"},
		{"call", "list", "{}", "more"},
		{"status"},
		{"status", "turn-1", "-turn-id", "turn-1"},
		{"list", "-profile", "x.json"},
		{"list", "-session", "s", "-profile", "x.json", "-host", "h", "-host-version", "1.0.0"},
		{"renew", "turn-1", "-minutes", "soon"},
		{"respond-interaction", "turn-1", "-answers", "[", "-interaction-id", "i"},
	} {
		if got := d.on(args...); got.status != 2 {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

// words divides a name where a small letter meets a capital.
var words = regexp.MustCompile(`([a-z])([A-Z])`)

// A refusal is an error line with its code, and with -json the refusal itself.
func TestOperator_Refusal(t *testing.T) {
	d := newDesk(t)
	got := d.on("cancel", "turn-20260101T000000-00000000")
	if got.status != 1 || got.out != "" || !strings.Contains(got.err, "[not_found]") {
		t.Errorf("%+v", got)
	}
	got = d.on("cancel", "turn-20260101T000000-00000000", "-json")
	var doc struct {
		Refused bool   `json:"refused"`
		Code    string `json:"code"`
		Next    any    `json:"next"`
	}
	if err := json.Unmarshal([]byte(got.out), &doc); err != nil || got.status != 1 || !doc.Refused || doc.Code != "not_found" || doc.Next == nil {
		t.Errorf("%+v, %v", got, err)
	}
	if got := d.command("", "list", "-store-dir", filepath.Join(d.store, "no", "dir\x00")); got.status == 0 {
		t.Errorf("an impossible Store: %+v", got)
	}
}

// A request from standard input arrives as it is.
func TestOperator_Stdin(t *testing.T) {
	d := newDesk(t)
	id := d.agent()
	s := d.watched()
	got := d.command("line one\nline two", "send", id, "-", "-json", "-store-dir", d.store, "-runtime-dir", d.run, "-tmux-socket", d.tmx)
	var sent struct {
		TurnID string `json:"turn_id"`
	}
	if err := json.Unmarshal([]byte(got.out), &sent); err != nil || got.status != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	if turn, err := s.Turn(t.Context(), sent.TurnID); err != nil || turn.RequestText != "line one\nline two" {
		t.Errorf("request %q, %v", turn.RequestText, err)
	}
}

// A saved screen is explained without a pane, a Store or a tmux server.
func TestExplain_File(t *testing.T) {
	d := newDesk(t)
	const screens = "../../../shared/agent/testdata/codex/screens/"
	got := d.on("explain", "--file", screens+"approval-exec.0.148.0.ansi", "-json")
	var e struct {
		State, Rule string
		Version     string `json:"agent_version"`
		File        string `json:"rule_file"`
		Prompt      struct{ Kind string }
		Evidence    []struct{ Rows []string }
		Typing      []struct {
			What    string
			Allowed bool
		}
	}
	if err := json.Unmarshal([]byte(got.out), &e); err != nil || got.status != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	if e.State != "approval" || e.Version != "0.148.0" || e.File != "codex-0.148.0.json" || e.Prompt.Kind != "run_command" || len(e.Evidence) == 0 || len(e.Evidence[0].Rows) < 5 {
		t.Errorf("explained as %+v", e)
	}
	text, err := os.ReadFile(screens + "completed.0.171.0.ansi")
	if err != nil {
		t.Fatal(err)
	}
	if got := d.command(string(text), "explain", "--file", "-", "--agent", "codex", "--version", "0.171.0", "--size", "120x40"); got.status != 0 || !strings.Contains(got.out, "state     idle") {
		t.Errorf("from standard input: %+v", got)
	}
	if got := d.command(string(text), "explain", "--file", "-", "--agent", "codex", "--version", "0.1.0"); got.status != 0 || !strings.Contains(got.out, "refused") {
		t.Errorf("of a version without rules: %+v", got)
	}
	for _, args := range [][]string{
		{"explain"}, {"explain", "x", "--file", "y"}, {"explain", "--file", "/no/such/file"}, {"explain", "x", "--agent", "codex"},
		{"explain", "--file", "-", "--version", "1.0.0"}, {"explain", "--file", screens + "completed.0.171.0.ansi", "--size", "wide"},
	} {
		if got := d.command("", args...); got.status != 2 {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if entries, err := os.ReadDir(d.store); err == nil && len(entries) != 0 {
		t.Errorf("explain made a Store: %v", entries)
	}
}

func TestSkill(t *testing.T) {
	if got := newDesk(t).command("", "skill"); got.status != 0 || got.out != catalog.Skill {
		t.Errorf("%+v", got)
	}
}
