package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/errgroup"

	"drawbridge/scripts/internal/demohost"
	"drawbridge/scripts/internal/rig"
	"drawbridge/shared/testkit/scripted"
)

// manyPanes is the size that the bounds speak of.
const manyPanes = 50

// atOnce is how many calls prepare panes at the same time.
const atOnce = 4

// tag begins every request that this package makes; cmd/stamp looks for it.
const tag = "bench-"

// A stand is the world of one run: a private tmux server whose panes hold
// scripted agents that share one home, as the agents of a person do, and one
// Host with its bridge, watchd and outboxd. Host and panes are made when a
// figure asks for them.
type stand struct {
	tb    rig.TB
	opts  Options
	rig   *rig.Rig
	agent string // path of the scripted Codex
	other string // path of the scripted Claude Code, which every second pane holds; "" for Codex alone
	ends  string // file in which the agents stamp completions
	host  *demohost.Host
	panes []*pane
	words int
}

// A pane holds one agent. It is used by one goroutine at a time.
type pane struct {
	n        int
	id       string // of tmux
	terminal string // terminal_id, once list has shown it
	gate     string // file that ends the held turn
	word     string // first word of the held request
}

func newStand(tb rig.TB, o Options) *stand {
	s := &stand{tb: tb, opts: o, rig: rig.New(tb)}
	for _, dir := range []string{"agent", "gates", "homes/shared"} {
		if err := os.MkdirAll(s.below(dir), 0o700); err != nil {
			tb.Fatalf("make the stand: %v", err)
		}
	}
	var err error
	if s.agent, err = scripted.Install(s.below("agent")); err != nil {
		tb.Fatalf("make the stand: %v", err)
	}
	s.ends = s.below("ends")
	return s
}

// newMixed makes a stand whose second, fourth, … panes hold the scripted Claude Code.
func newMixed(tb rig.TB, o Options) *stand {
	s := newStand(tb, o)
	var err error
	if s.other, err = scripted.InstallClaude(s.below("agent")); err != nil {
		tb.Fatalf("make the stand: %v", err)
	}
	return s
}

// hostUp gives the Host, and starts it when there is none.
func (s *stand) hostUp(ctx context.Context) (*demohost.Host, error) {
	if s.host != nil {
		return s.host, nil
	}
	h, err := demohost.Start(ctx, demohost.Options{
		Bridge: filepath.Join(s.opts.Bin, "bridge"), Inbox: s.opts.Stamp, Dir: s.below("host"), Session: "bench-session",
		Home: s.rig.Home(), StoreDir: s.below("store"), RuntimeDir: s.below("run"), TmuxSockets: []string{s.rig.Socket},
	})
	if err != nil {
		return nil, err
	}
	s.tb.Cleanup(func() {
		if err := h.Stop(); err != nil {
			s.tb.Errorf("%v", err)
		}
		h.Kill()
	})
	s.host = h
	return h, nil
}

// grow sees to it that there are at least n panes with an idle agent.
func (s *stand) grow(ctx context.Context, n int) error {
	if len(s.panes) >= n {
		return nil
	}
	for len(s.panes) < n {
		p := &pane{n: len(s.panes) + 1}
		name := "agent" + strconv.Itoa(p.n)
		work := s.below("trees", name)
		if err := os.MkdirAll(work, 0o700); err != nil {
			return err
		}
		program, home := s.agent, "CODEX_HOME="
		if s.other != "" && p.n%2 == 0 {
			program, home = s.other, "CLAUDE_CONFIG_DIR="
		}
		id := s.rig.Tmux("new-session", "-d", "-P", "-F", "#{pane_id}", "-s", name,
			"-x", strconv.Itoa(rig.Width), "-y", strconv.Itoa(rig.Height), "-c", work,
			"-e", home+s.below("homes", "shared"), "-e", scripted.StampVariable+"="+s.ends, "exec "+program)
		p.id = strings.TrimSpace(id)
		s.panes = append(s.panes, p)
	}
	return until(ctx, patience, fmt.Sprintf("%d agents are idle", n), func() (bool, error) {
		rows, err := s.rows(ctx)
		if err != nil {
			return false, err
		}
		ready := 0
		for _, p := range s.panes {
			row := rows["agent"+strconv.Itoa(p.n)]
			if p.terminal = row.ID; row.Actions["send"] != nil {
				ready++
			}
		}
		return ready == len(s.panes), nil
	})
}

// row is what this package reads of list's rows.
type row struct {
	ID      string                     `json:"id"`
	Target  string                     `json:"target"` // session:window.pane
	Actions map[string]json.RawMessage `json:"available_actions"`
}

// rows lists the terminals by their session's name.
func (s *stand) rows(ctx context.Context) (map[string]row, error) {
	var body struct {
		Terminals []row `json:"terminals"`
	}
	if err := s.call(ctx, "list", nil, &body); err != nil {
		return nil, err
	}
	out := map[string]row{}
	for _, r := range body.Terminals {
		name, _, _ := strings.Cut(r.Target, ":")
		out[name] = r
	}
	return out, nil
}

// call calls a tool of our bridge and reads its answer into v.
func (s *stand) call(ctx context.Context, tool string, arguments map[string]any, v any) error {
	h, err := s.hostUp(ctx)
	if err != nil {
		return err
	}
	if arguments == nil {
		arguments = map[string]any{}
	}
	answer, err := h.Session().CallTool(ctx, &mcp.CallToolParams{Name: "agent_knock_knock_" + tool, Arguments: arguments})
	if err != nil {
		return fmt.Errorf("call %s: %w", tool, err)
	}
	raw, err := json.Marshal(answer.StructuredContent)
	if err != nil {
		return fmt.Errorf("call %s: %w", tool, err)
	}
	if answer.IsError {
		r := &refusal{tool: tool}
		if err := json.Unmarshal(raw, r); err != nil {
			return fmt.Errorf("call %s: read the refusal: %w", tool, err)
		}
		return r
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("call %s: read the answer: %w", tool, err)
	}
	return nil
}

// A refusal is a tool's answer that says no.
type refusal struct {
	tool   string
	Code   string `json:"code"`
	Reason string `json:"reason"`
	Again  bool   `json:"safe_to_retry"`
}

func (r *refusal) Error() string {
	return "call " + r.tool + ": refused with " + r.Code + ": " + r.Reason
}

// newWord makes a new first word of a request.
func (s *stand) newWord() string {
	s.words++
	return tag + strconv.Itoa(s.words)
}

// request makes the text of a turn that p holds open until release.
func (s *stand) request(p *pane) string {
	p.word = s.newWord()
	p.gate = s.below("gates", p.word)
	return p.word + " hold:" + p.gate
}

// send gives p a turn that stays open, through drawbridge.
func (s *stand) send(ctx context.Context, p *pane, text string) (turn string, err error) {
	var sent struct {
		Turn    string `json:"turn_id"`
		Outcome string `json:"submission_outcome"`
	}
	// On a busy machine a screen may not settle in time; the refusal then says that
	// nothing was typed and that the call may be repeated.
	err = until(ctx, patience, fmt.Sprintf("pane %d takes a request", p.n), func() (bool, error) {
		err := s.call(ctx, "send", map[string]any{"terminal_id": p.terminal, "request": text}, &sent)
		if r := (*refusal)(nil); errors.As(err, &r) && r.Again {
			s.opts.Log("%v", r)
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return "", err
	}
	if sent.Outcome != "agent_accepted" {
		return "", fmt.Errorf("send to pane %d: outcome %s", p.n, sent.Outcome)
	}
	return sent.Turn, nil
}

// occupy gives each pane an open turn of drawbridge.
func (s *stand) occupy(ctx context.Context, panes []*pane) error {
	texts := map[*pane]string{}
	for _, p := range panes {
		texts[p] = s.request(p)
	}
	return each(panes, func(p *pane) error {
		_, err := s.send(ctx, p, texts[p])
		return err
	})
}

// each does f for all panes, a few at a time.
func each(panes []*pane, f func(*pane) error) error {
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, p := range panes {
		g.Go(func() error { return f(p) })
	}
	return g.Wait()
}

// byHand types an open turn into p as a person would.
func (s *stand) byHand(p *pane) {
	text := s.request(p)
	s.rig.Tmux("send-keys", "-t", p.id, "-l", text)
	s.rig.Tmux("send-keys", "-t", p.id, "Enter")
}

// release lets the open turn of p end.
func (s *stand) release(p *pane) error {
	if err := os.WriteFile(p.gate, nil, 0o600); err != nil {
		return fmt.Errorf("release pane %d: %w", p.n, err)
	}
	return nil
}

// delivered gives the file in which the callback executable stamps its starts.
func (s *stand) delivered() string { return filepath.Join(s.host.Inbox(), stampFile) }

// settled releases the panes and waits until their callbacks have arrived.
func (s *stand) settled(ctx context.Context, panes []*pane) error {
	for _, p := range panes {
		if err := s.release(p); err != nil {
			return err
		}
	}
	return until(ctx, patience, "the callbacks of the open turns have come", func() (bool, error) {
		seen, err := stamps(s.delivered())
		for _, p := range panes {
			if _, ok := seen[p.word]; !ok {
				return false, err
			}
		}
		return true, err
	})
}

// stampFile is where cmd/stamp writes, in the directory that it is told.
const stampFile = "stamps"

// stamps reads "NANOSECONDS WORD" lines; of a word that comes twice the first
// counts. A file that is not there yet holds none.
func stamps(path string) (map[string]int64, error) {
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read stamps: %w", err)
	}
	out := map[string]int64{}
	for line := range strings.Lines(string(raw)) {
		at, word, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !ok || !strings.HasSuffix(line, "\n") {
			continue // being written
		}
		ns, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read stamps: %w", err)
		}
		if _, twice := out[word]; !twice {
			out[word] = ns
		}
	}
	return out, nil
}

// tmux runs one bare client on the stand's server; it is what baselines cost.
func (s *stand) tmux(ctx context.Context, stdin string, args ...string) (*exec.Cmd, []byte, error) {
	cmd := exec.CommandContext(ctx, "tmux", append([]string{"-u", "-S", s.rig.Socket}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TERM=dumb"}
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.Output()
	if err != nil {
		return cmd, nil, fmt.Errorf("tmux %s: %w", args[0], err)
	}
	return cmd, out, nil
}

// bareLook is the baseline of everything that looks at all panes: one listing,
// then one client with a styled capture of each. It gives the processor time.
func (s *stand) bareLook(ctx context.Context) (time.Duration, error) {
	listed, ids, err := s.tmux(ctx, "", "list-panes", "-a", "-F", "#{pane_id}")
	if err != nil {
		return 0, err
	}
	var script strings.Builder
	n := 0
	for id := range strings.FieldsSeq(string(ids)) {
		fmt.Fprintf(&script, "capture-pane -e -p -t %s\n", id)
		n++
	}
	captured, screens, err := s.tmux(ctx, script.String(), "source-file", "-")
	if err != nil {
		return 0, err
	}
	if lines := strings.Count(string(screens), "\n"); lines < n*rig.Height/2 {
		return 0, fmt.Errorf("%d captures gave %d lines", n, lines)
	}
	return cpu(listed) + cpu(captured), nil
}

func cpu(cmd *exec.Cmd) time.Duration {
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}
