// Package agent is the seam between drawbridge and the coding agents: what a
// screen and a transcript mean, and how one exact request is proven to have
// been accepted and finished.
//
// Knowledge of an agent version is data (package rule); an Adapter is the small
// amount of Go around it. handoff and watchd know agents only through this
// package. Nothing here types; nothing here writes a file.
package agent

import (
	"context"
	"errors"
	"time"

	"drawbridge/shared/process"
	"drawbridge/shared/terminal"
)

// Kind names an agent.
type Kind string

// The agents of the contract.
const (
	Codex  Kind = "codex"
	Claude Kind = "claude"
)

// Errors of Find. Both mean that nothing may be typed.
var (
	ErrNoAgent       = errors.New("no agent process in the foreground of the pane")
	ErrSeveralAgents = errors.New("more than one agent process in the pane")
)

// Class is what the version policy says of one agent version (design, override 6).
type Class string

// The three classes.
const (
	Tested   Class = "tested"   // fixtures of this very version are in testdata
	Untested Class = "untested" // a rule file covers it structurally, no fixtures
	Refused  Class = "refused"  // older than the oldest rule file, or unreadable
)

// Mode says who holds the conversation.
type Mode string

// Modes of an agent process.
const (
	InProcess Mode = "in_process" // the process in the pane holds its thread
	Daemon    Mode = "daemon"     // a background server holds the threads of all panes
)

// Process is the one agent process in the foreground of a pane.
type Process struct {
	Agent   Kind                 `json:"agent"`
	Inc     process.Incarnation  `json:"incarnation"`
	Exe     string               `json:"exe"`
	Version string               `json:"version"` // "0.171.0"; "" when unknown
	Class   Class                `json:"class"`
	Home    string               `json:"home"` // agent home (CODEX_HOME)
	HomeID  FileID               `json:"home_id"`
	Cwd     string               `json:"cwd"`
	Mode    Mode                 `json:"mode"`
	Daemon  *process.Incarnation `json:"daemon,omitempty"` // holder of the threads in Daemon mode
}

// FileID names a file beyond its path.
type FileID struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// State is what a screen shows, by structure and style, never by wording in
// agent output.
type State string

// Screen states.
const (
	Idle     State = "idle"
	Working  State = "working"
	Approval State = "approval"  // one complete approval dialog is the bottom-most region
	Question State = "question"  // questionnaire or elicitation
	Blocked  State = "blocked"   // picker, trust, update, login, history: a person must act in the pane
	NotReady State = "not_ready" // starting
	Exited   State = "exited"
	Unknown  State = "unknown"
)

// Reading is the verdict on one screen.
type Reading struct {
	State    State
	Name     string // name of the rule that decided, e.g. "approval-exec"
	Composer Composer
	Prompt   *Prompt // with Approval and Question
	Evidence []Evidence
}

// Composer is the agent's input box.
type Composer struct {
	Seen   bool
	Empty  bool   // nothing but placeholder, told by style
	Draft  string // text as shown, rows joined by \n, indentation of further rows removed
	Pasted int    // characters behind a "[Pasted Content N chars]" placeholder, 0 if none
	// Placeholder is the mark that stands for a large paste, exactly as shown,
	// where the draft is nothing but that mark; "" otherwise.
	Placeholder string
	Held        string // why Enter would not send the draft as it stands ("popup", "shell_mode", "history"); "" if it would
	// Scrolled: the box shows only the end of a longer draft (Codex 0.171.0 marks
	// it with a dim arrow in the last column of the first row, 0.148.0 shows it
	// by filling the pane to its top). Draft then begins in the middle.
	Scrolled bool
}

// Prompt is one isolated dialog.
type Prompt struct {
	Kind     string // run_command, edit_files, fetch, mcp_tool, plan, tool (another, or out of sight), questionnaire, elicitation
	Title    string
	Command  string // as shown, white space removed at row ends; the transcript's form is authoritative
	Reason   string
	Options  []string
	Selected int            // index of the highlighted option, -1 unknown
	Cut      bool           // the pane has no room for all of it: never approvable
	Approve  []terminal.Key // allows this one call and nothing more; nil when that is not proven
	Reject   []terminal.Key // refuses it; nil when that is not proven
	Region   []byte         // exact styled bytes of the dialog
	Digest   string         // SHA-256 of Region, hex
	// Stable is a digest of the dialog's text that stays equal while only the
	// highlight moves: an answer that needs several keys is checked by it.
	Stable string
	Page   *Page // with Question, where the page could be read
}

// Page is one page of a questionnaire as the screen shows it.
type Page struct {
	Index    int // from 1; 0 unknown
	Total    int // 0 unknown
	Header   string
	Text     string
	Options  []string
	About    []string // what stands beside or below each option
	Answers  int      // the first so many options are the question's own
	Selected int      // index into Options, -1 none
	Own      int      // index of the option that takes a text of one's own, -1 none
	Field    bool     // the place for that text is open: what is pasted stands there
	Typed    string   // what stands in it
	Multi    bool     // several options may be chosen
	FreeText bool     // there is a place for a text of one's own
	Review   bool     // the last page, which submits
	Columns  int      // of the pane, 0 unknown
}

// Evidence names why a verdict was reached (bridge explain).
type Evidence struct {
	Rule   string
	Region string // "rows 12-19"
	Detail string
}

// IdentityState says how well the native thread is known.
type IdentityState string

// Identity states (tools.md §8.1).
const (
	Resolved       IdentityState = "resolved"
	Ambiguous      IdentityState = "ambiguous"
	VerifiedAbsent IdentityState = "verified_absent"
	Unavailable    IdentityState = "unavailable"
)

// Activity is what the agent's own records say, independent of any screen.
type Activity string

// Durable activities.
const (
	ActivityIdle    Activity = "idle"
	ActivityWorking Activity = "working"
	ActivityUnknown Activity = "unknown"
)

// Identity is the native thread of a pane as far as it is proven without typing.
type Identity struct {
	State    IdentityState
	ThreadID string     // lower case; with Resolved only
	Files    []Position // transcripts that could be this pane's, at their present end
	Activity Activity   // of the resolved thread; Unknown otherwise
	Reason   string     // one line why not Resolved
}

// Position is a place in one transcript. Offset is always just behind a newline.
type Position struct {
	Path     string `json:"path"`
	File     FileID `json:"file"`
	ThreadID string `json:"thread_id"`
	Offset   int64  `json:"offset"`
	Ordinal  int64  `json:"ordinal"` // last record's ordinal, -1 when none
}

// Prepared is a request as it will be typed.
type Prepared struct {
	Typed       string // bytes to paste
	Expected    string // text that the acceptance record must hold exactly
	RequestHash string // SHA-256 of Expected, hex
	// LineFeeds says that line feeds are pasted as they are, not as the carriage
	// returns that a terminal sends for the line ends of a paste.
	LineFeeds bool
}

// Anchor fixes, before the first byte is typed, where acceptance may be found.
type Anchor struct {
	Version  int        `json:"version"` // 1
	Process  Process    `json:"process"`
	ThreadID string     `json:"thread_id,omitempty"` // "" = provisional
	Files    []Position `json:"files"`               // complete inventory with offsets
	Dirs     []string   `json:"dirs"`                // where new transcripts may appear
	Threads  []string   `json:"threads,omitempty"`   // threads proven to belong to this pane's process (port proof)
	TakenAt  int64      `json:"taken_at"`            // wall clock, ms
}

// Verdict is the result of one search for acceptance.
type Verdict string

// Verdicts.
const (
	Accepted  Verdict = "accepted"  // exactly one record, this pane's or of no other pane
	Shared    Verdict = "shared"    // exactly one record, but its thread is shown by another living pane
	Pending   Verdict = "pending"   // none yet
	Uncertain Verdict = "uncertain" // several, or an anchored file is gone, shorter or replaced
)

// Acceptance is the evidence that the agent took exactly this request
// (spec core §5.2). EvidenceFingerprint recomputes from the other members.
type Acceptance struct {
	Source              string            `json:"source"` // codex_rollout, claude_transcript
	Kind                string            `json:"kind"`   // native_user_turn
	NativeThreadID      string            `json:"nativeThreadId"`
	RequestHash         string            `json:"requestHash"`
	AcceptanceID        string            `json:"acceptanceId"`
	AcceptedAt          int64             `json:"acceptedAt,omitempty"`
	AnchorFingerprint   string            `json:"anchorFingerprint"`
	EvidenceFingerprint string            `json:"evidenceFingerprint"`
	Metadata            map[string]string `json:"metadata,omitempty"`
	Task                Task              `json:"task"` // what to follow from here
}

// Task is one native turn in one transcript: what a monitor or a Watch follows.
type Task struct {
	Version  int      `json:"version"` // 1
	Process  Process  `json:"process"`
	ThreadID string   `json:"thread_id"`
	TurnID   string   `json:"turn_id"`
	Start    Position `json:"start"` // at or before the turn's first record
}

// ProgressState says where a Task stands by its own records.
type ProgressState string

// Progress states.
const (
	Open      ProgressState = "open"
	Completed ProgressState = "completed"
	Failed    ProgressState = "failed"
	Aborted   ProgressState = "aborted"    // interrupted or a rejected approval
	Lost      ProgressState = "lost"       // no terminal record and the holder is proven dead
	Broken    ProgressState = "broken"     // file gone, shorter, replaced or corrupt
	NextBegan ProgressState = "next_began" // another turn began and this one has no terminal record
)

// Progress is one reading of a Task.
type Progress struct {
	State       ProgressState
	Text        string // final answer, whole
	Error       string // message of a failed turn
	ID          string // id of the completion
	At          time.Time
	Fingerprint string   // SHA-256 over thread, turn, state and terminal record; equal for equal evidence
	Digest      string   // changes whenever records were added: proof of life
	Checkpoint  Position // how far the file was read; reading may start there next time
	Waiting     *Call    // a call that may wait for a person
	// Calls are all calls without an answer that may wait for a person, oldest
	// first; Waiting is the first of them. Which one a dialog is about, its command
	// decides.
	Calls []Call
	// Unsaid are calls without an answer of which the agent does not say that they
	// wait for a person; most of them run. Only a dialog that stays on the screen
	// speaks for one, and no key follows from it.
	Unsaid []Call
}

// Call is an unanswered tool call of an open turn.
type Call struct {
	ID      string
	Name    string
	Kind    string // run_command, edit_files, mcp_tool, questionnaire
	Command string // authoritative text
	Cwd     string
	// Asks are the questions of a questionnaire, from the agent's own records.
	Asks []Ask
}

// Ask is one question of a questionnaire.
type Ask struct {
	ID      string
	Header  string
	Text    string
	Options []Choice
	Multi   bool
	Secret  bool
}

// Choice is one option of an Ask.
type Choice struct {
	Label       string
	Description string
}

// Adapter is one agent behind the seam. Every method may be called from several
// goroutines; those that read the world take a context and obey its deadline.
type Adapter interface {
	Kind() Kind

	// Find gives the agent process in the foreground of the pane: exactly one
	// descendant of the pane's process, on the pane's tty, in its foreground
	// group. ErrNoAgent and ErrSeveralAgents are the expected errors.
	Find(ctx context.Context, pane terminal.Pane) (Process, error)

	// Read judges one screen by the rules of the version.
	Read(version string, screen terminal.Screen) Reading

	// Identify says what is known of the pane's thread without typing.
	Identify(ctx context.Context, proc Process) (Identity, error)

	// Prepare turns a request into what is typed, or refuses it
	// (native_slash_command, invalid_arguments).
	Prepare(request string) (Prepared, error)

	// Landed reports whether the composer holds exactly the prepared text.
	Landed(composer Composer, p Prepared) bool

	// Anchor is taken under the terminal lease before the first byte.
	Anchor(ctx context.Context, proc Process) (Anchor, error)

	// Accept looks once for the acceptance of p after anchor. In daemon mode a
	// single match is only decided some time after it was first seen (a second
	// pane may accept the same text); until then the verdict is Pending, and the
	// acceptance names the match that was seen (AcceptanceID is not empty). An
	// error decides nothing; Uncertain comes without one.
	Accept(ctx context.Context, anchor Anchor, p Prepared) (Acceptance, Verdict, error)

	// Progress reads the task from checkpoint (zero: from task.Start).
	Progress(ctx context.Context, task Task, checkpoint Position) (Progress, error)

	// Current gives the open turn of the pane's thread, for a Watch; ok is false
	// where no unique open turn is proven.
	Current(ctx context.Context, proc Process) (task Task, ok bool, err error)

	// Alive reports whether the holder of the task's thread (the process, or the
	// daemon) still lives; known is false where that cannot be proven.
	Alive(ctx context.Context, proc Process) (alive, known bool)

	// Dirs are the directories whose changes may concern the process's transcripts.
	Dirs(proc Process) []string

	// Files are the files in which the task goes on: what happens to them, and to
	// no other, may change its Progress.
	Files(task Task) []string

	// Interrupt is the key that cancels the running turn once.
	Interrupt() terminal.Key
}
