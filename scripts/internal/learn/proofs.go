package learn

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"drawbridge/scripts/internal/rig"
	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/terminal"
)

// threadID is how both agents write the id of a conversation.
var threadID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// screenProof says what one recorded screen must be read as.
type screenProof struct {
	name     string
	action   Action // besides observing
	state    agent.State
	or       agent.State // the same screen may be read so, too
	optional bool        // the screen passes by, and may not have been caught
	also     func(p *prover, s terminal.Screen, r agent.Reading) error
}

// transcriptProof says what the records of one scenario must be read as.
type transcriptProof struct {
	name   string
	action Action
	kinds  []rule.Kind // in this order, others apart
	also   func(all []rule.Record) error
}

// Prove reads the recordings of a version by rules and judges every reading.
func Prove(name, version, recordings string, rules []byte) ([]Proof, error) {
	f, err := rule.Compile(name+"-"+version+".json", rules)
	if err != nil {
		return nil, err
	}
	p := prover{agent: name, version: version, dir: recordings, rules: f}
	screens, transcripts := codexScreens, codexTranscripts
	if name == rig.Claude {
		screens, transcripts = claudeScreens, claudeTranscripts
	}
	for _, s := range screens {
		p.screen(s)
	}
	for _, t := range transcripts {
		p.transcript(t)
	}
	p.commands()
	return p.out, nil
}

type prover struct {
	agent, version, dir string
	rules               *rule.File
	out                 []Proof
}

func (p *prover) note(action Action, name, file string, err error) {
	p.out = append(p.out, Proof{Action: action, Name: name, File: file, Err: err})
}

func (p *prover) screen(want screenProof) {
	file := filepath.Join(p.dir, "screens", want.name+"."+p.version+".ansi")
	s, err := load(file)
	if errors.Is(err, os.ErrNotExist) {
		if !want.optional {
			p.note(Observe, want.name, file, errMissing)
		}
		return
	}
	if err != nil {
		p.note(Observe, want.name, file, err)
		return
	}
	r := p.rules.Read(s)
	if r.State != want.state && r.State != want.or {
		p.note(Observe, want.name, file, fmt.Errorf("read as %s (%s), and it is %s", r.State, r.Name, want.state))
		return
	}
	p.note(Observe, want.name, file, nil)
	if want.also != nil {
		p.note(want.action, want.name, file, want.also(p, s, r))
	}
}

func load(file string) (terminal.Screen, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return terminal.Screen{}, err
	}
	return terminal.Screen{Text: text, Pane: terminal.Pane{Width: rig.Width, Height: rig.Height}}, nil
}

func (p *prover) transcript(want transcriptProof) {
	file := filepath.Join(p.dir, rig.TranscriptDir(p.agent), p.version+"-"+want.name+".jsonl")
	raw, err := os.ReadFile(file)
	if err != nil {
		p.note(Observe, want.name, file, errMissing)
		return
	}
	var all []rule.Record
	var kinds []rule.Kind
	for line := range strings.Lines(string(raw)) {
		r, err := p.rules.Record([]byte(line))
		if err != nil {
			p.note(Observe, want.name, file, err)
			return
		}
		all = append(all, r)
		switch last := len(kinds) - 1; {
		case ends(r.Kind) && last >= 0 && ends(kinds[last]):
			// Some versions write how long a turn took behind its failure, too: the
			// first end counts.
		case slices.Contains(want.kinds, r.Kind) || ends(r.Kind):
			kinds = append(kinds, r.Kind)
		}
	}
	if !slices.Equal(kinds, want.kinds) {
		err = fmt.Errorf("its records are %v, and they are %v", kinds, want.kinds)
	}
	p.note(Observe, want.name, file, err)
	if want.also != nil {
		p.note(want.action, want.name, file, want.also(all))
	}
}

// ends reports a record that ends a turn.
func ends(k rule.Kind) bool {
	return k == rule.TurnCompleted || k == rule.TurnFailed || k == rule.TurnAborted
}

// commands proves that each closed command, once it stands in the composer, is
// recognised, and that the status which was asked for can be read.
func (p *prover) commands() {
	for op, name := range map[agent.Op]string{agent.OpStatus: "command-status", agent.OpNew: "command-new", agent.OpResume: "command-resume"} {
		file := filepath.Join(p.dir, "screens", name+"."+p.version+".ansi")
		p.note(Lifecycle, name, file, p.command(op, file))
	}
}

func (p *prover) command(op agent.Op, file string) error {
	s, err := load(file)
	if err != nil {
		return errMissing
	}
	thread := rig.NoThread
	if op == agent.OpResume {
		if thread = threadOn(s); thread == "" {
			return errors.New("the command on it names no thread")
		}
	}
	c, err := p.rules.Command(op, thread)
	if err != nil {
		return err
	}
	if !c.Standing(s) {
		return fmt.Errorf("%q stands in the composer, and is not seen there", c.Text)
	}
	other, err := p.rules.Command(agent.OpStatus, "")
	if op != agent.OpStatus && (err != nil || other.Standing(s)) {
		return errors.New("it is taken for the status command")
	}
	return nil
}

// The parts of proofs that both agents have.

func anyDraft(text string) func(*prover, terminal.Screen, agent.Reading) error {
	return func(_ *prover, _ terminal.Screen, r agent.Reading) error {
		if c := r.Composer; !c.Seen || c.Empty || c.Draft != text || c.Held != "" {
			return fmt.Errorf("the draft is read as %+v, and it is %q", c, text)
		}
		return nil
	}
}

func noDraft(_ *prover, _ terminal.Screen, r agent.Reading) error {
	if c := r.Composer; !c.Seen || !c.Empty || c.Held != "" {
		return fmt.Errorf("the composer is read as %+v, and it is empty", c)
	}
	return nil
}

func placeholder(part string) func(*prover, terminal.Screen, agent.Reading) error {
	return func(_ *prover, _ terminal.Screen, r agent.Reading) error {
		if c := r.Composer; !c.Seen || c.Empty || !strings.Contains(c.Placeholder, part) {
			return fmt.Errorf("the composer is read as %+v, and a mark with %q stands for the paste", c, part)
		}
		return nil
	}
}

// asks proves an approval dialog that may be decided by keys. An empty command is
// not compared.
func asks(kind, command string) func(*prover, terminal.Screen, agent.Reading) error {
	return func(_ *prover, _ terminal.Screen, r agent.Reading) error {
		p := r.Prompt
		switch {
		case p == nil:
			return errors.New("there is no prompt")
		case p.Cut:
			return errors.New("it is taken for cut off")
		case p.Kind != kind:
			return fmt.Errorf("it is about %s, and that is %s", p.Kind, kind)
		case command != "" && squeeze(p.Command) != squeeze(command):
			return fmt.Errorf("it asks about %q, and that is %q", p.Command, command)
		case p.Approve == nil:
			return errors.New("no key is proven to allow this one call")
		case p.Reject == nil:
			return errors.New("no key is proven to refuse it")
		}
		return nil
	}
}

// squeeze removes white space: a dialog wraps what it shows.
func squeeze(s string) string { return strings.Join(strings.Fields(s), "") }

// page proves a page of a questionnaire.
func page(text string, options []string, selected int, also ...func(*agent.Page) error) func(*prover, terminal.Screen, agent.Reading) error {
	return func(_ *prover, _ terminal.Screen, r agent.Reading) error {
		if r.Prompt == nil || r.Prompt.Page == nil {
			return errors.New("the page cannot be read")
		}
		p := r.Prompt.Page
		if squeeze(p.Text) != squeeze(text) || len(p.Options) < len(options) || p.Selected != selected {
			return fmt.Errorf("the page is read as %+v, and it asks %q with option %d highlighted", *p, text, selected)
		}
		for i, o := range options {
			if squeeze(p.Options[i]) != squeeze(o) {
				return fmt.Errorf("option %d is read as %q, and it is %q", i, p.Options[i], o)
			}
		}
		for _, f := range also {
			if err := f(p); err != nil {
				return err
			}
		}
		return nil
	}
}

func several(p *agent.Page) error {
	if !p.Multi {
		return errors.New("it takes several answers, and that is not seen")
	}
	return nil
}

func oneAnswer(p *agent.Page) error {
	if p.Multi {
		return errors.New("it takes one answer, and several are seen")
	}
	return nil
}

// card proves the status that was asked for.
func card(p *prover, s terminal.Screen, _ agent.Reading) error {
	cards := p.rules.Cards(p.version, s)
	if len(cards) == 0 {
		return errors.New("the status on it cannot be read")
	}
	if c := cards[len(cards)-1]; c.ThreadID == "" || c.Version != "" && c.Version != p.version {
		return fmt.Errorf("the status is read as thread %q, version %q", c.ThreadID, c.Version)
	}
	return nil
}

// prompts proves that the request of a scenario is recognised word by word.
func prompts(texts ...string) func([]rule.Record) error {
	return func(all []rule.Record) error {
		var got []string
		for _, r := range all {
			if r.Kind == rule.UserMessage {
				got = append(got, r.Text)
				if r.Thread == "" || r.ID == "" && r.Turn == "" {
					return fmt.Errorf("the request %q has no thread or id", r.Text)
				}
			}
		}
		if !slices.Equal(got, texts) {
			return fmt.Errorf("the requests are read as %q, and they are %q", got, texts)
		}
		return nil
	}
}

// called proves the calls of a scenario, by kind and command.
func called(want ...[2]string) func([]rule.Record) error {
	return func(all []rule.Record) error {
		var got [][2]string
		open := map[string]bool{}
		for _, r := range all {
			switch {
			case r.Kind == rule.CallBegan && r.Call != nil && r.Call.Asks:
				got = append(got, [2]string{r.Call.Kind, r.Call.Command})
				open[r.Call.ID] = true
			case r.Kind == rule.CallOutput && r.Call != nil:
				delete(open, r.Call.ID)
			}
		}
		if len(got) != len(want) {
			return fmt.Errorf("its calls are read as %q, and they are %q", got, want)
		}
		for i := range want {
			if got[i][0] != want[i][0] || want[i][1] != "" && !strings.Contains(got[i][1], want[i][1]) {
				return fmt.Errorf("its calls are read as %q, and they are %q", got, want)
			}
		}
		if len(open) > 0 {
			return fmt.Errorf("%d calls have no result", len(open))
		}
		return nil
	}
}

// threadOn finds the thread that a resume command on the screen names.
func threadOn(s terminal.Screen) string {
	m := threadID.FindAllString(string(s.Text), -1)
	if len(m) == 0 {
		return ""
	}
	return m[len(m)-1]
}
