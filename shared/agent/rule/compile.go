package rule

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/Masterminds/semver/v3"

	"drawbridge/shared/agent/screen"
	"drawbridge/shared/strictjson"
	"drawbridge/shared/terminal"
)

// maxWindow bounds every number of rows in a rule file.
const maxWindow = 200

// head is what a rule file says of itself and of the agent's keyboard: enough to
// choose it.
type head struct {
	name    string
	agent   string
	about   string
	tested  []string
	oldest  *semver.Version
	columns int
	rows    int
	keys    Keys
	input   Input
}

// engine is a whole rule file, compiled.
type engine struct {
	head

	composer composer
	footer   []footer
	busy     busy
	popups   popups
	notes    []row
	dialogs  []dialog
	pages    []page
	panels   []row
	unnamed  []row
	exited   exited
	records  records
	native   *native
}

// The compiled forms of the members of a document.
type (
	style struct {
		set, clear screen.Attr
		fg, bg     colorTest
	}
	colorTest struct {
		color screen.Color
		on    bool
		not   bool
	}
	group struct {
		index int // of the expression; 0 is the whole row
		name  string
		style style
	}
	row struct {
		name   string
		re     *regexp.Regexp
		groups []group
		full   bool
	}
	marker struct {
		name, text, held string
		busy, hidden     bool // hidden: the composer is there, its marker is out of sight
		style            style
	}
	composer struct {
		column, indent int
		gapText        string
		frame          *row
		cursor         *style
		markers        []marker
		placeholder    style
		pasted         row
		headroom, tall int
		scrollMark     string
		scrollStyle    style
		scrollTop      int
		scrollFrame    *row
	}
	footer struct {
		row         row
		means, held string
		withEmpty   bool
		wraps       bool
		above       bool
		draft       bool
		room        int
	}
	busy struct {
		window         int
		rows, suspects []row
	}
	popup struct {
		row   row
		below bool
	}
	popups struct {
		window int
		rows   []popup
	}
	exited struct {
		window int
		rows   []row
	}
)

// Compile checks one rule file and makes it ready for use. The error names the
// file and the JSON pointer of the member that is wrong.
func Compile(name string, data []byte) (*File, error) {
	e, err := compile(name, data)
	if err != nil {
		return nil, err
	}
	return &File{head: e.head, engine: func() *engine { return e }}, nil
}

func compile(name string, data []byte) (*engine, error) {
	var doc document
	if err := strictjson.Decode(data, &doc, strictjson.Limits{MaxBytes: MaxFileBytes}); err != nil {
		return nil, fmt.Errorf("rule file %s: %w", name, err)
	}
	c := &compiler{exprs: map[string]*regexp.Regexp{}}
	e := c.file(name, &doc)
	if err := errors.Join(c.errs...); err != nil {
		return nil, fmt.Errorf("rule file %s: %w", name, err)
	}
	return e, nil
}

// ours gives a rule file of this program, which a test compiles: only its head is
// read, the rest is compiled by the first use. A program meets one or two versions,
// and a compiled file takes a MiB.
func ours(name string, data []byte) (*File, error) {
	var doc struct {
		Agent    string       `json:"agent"`
		About    string       `json:"about"`
		Versions versionsJSON `json:"versions"`
		Size     sizeJSON     `json:"size"`
		Keys     keysJSON     `json:"keys"`
		Input    inputJSON    `json:"input"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("rule file %s: %w", name, err)
	}
	c := &compiler{}
	h := c.head(name, &document{Agent: doc.Agent, About: doc.About, Versions: doc.Versions, Size: doc.Size, Keys: doc.Keys, Input: doc.Input})
	if err := errors.Join(c.errs...); err != nil {
		return nil, fmt.Errorf("rule file %s: %w", name, err)
	}
	return &File{head: h, engine: sync.OnceValue(func() *engine {
		e, err := compile(name, data)
		if err != nil {
			panic(err)
		}
		return e
	})}, nil
}

// compiler collects every fault of a file, so that its author sees all at once. An
// expression that the file repeats is compiled once.
type compiler struct {
	errs  []error
	exprs map[string]*regexp.Regexp
}

func (c *compiler) fail(at, format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...)))
}

func (c *compiler) head(name string, d *document) head {
	h := head{name: name, agent: d.Agent, about: d.About, columns: d.Size.Columns, rows: d.Size.Rows}
	if !wordPattern.MatchString(d.Agent) {
		c.fail("/agent", "is not a lower case word")
	}
	c.within("/size/columns", d.Size.Columns, 1, 1000)
	c.within("/size/rows", d.Size.Rows, 1, 1000)
	h.oldest, h.tested = c.versions(d.Versions)
	h.keys = Keys{Submit: c.key("/keys/submit", d.Keys.Submit), Interrupt: c.key("/keys/interrupt", d.Keys.Interrupt),
		Clear: c.keyList("/keys/clear", d.Keys.Clear)}
	h.input = Input{InlineChars: d.Input.InlineChars, RequestBytes: d.Input.RequestBytes, Refuse: d.Input.Refuse,
		WrapPrefix: d.Input.WrapPrefix, WrapWord: d.Input.WrapWord}
	c.within("/input/inline_chars", d.Input.InlineChars, 1, 1<<20)
	c.within("/input/request_bytes", d.Input.RequestBytes, 1, 1<<20)
	if len(d.Input.WrapPrefix) > 0 && strings.TrimSpace(d.Input.WrapWord) == "" {
		c.fail("/input/wrap_word", "is empty, yet wrap_prefix is not")
	}
	return h
}

func (c *compiler) file(name string, d *document) *engine {
	if d.Schema != Schema {
		c.fail("/schema", "is %d, this program knows %d", d.Schema, Schema)
	}
	f := &engine{head: c.head(name, d)}
	f.composer = c.composer("/composer", d.Composer)
	ready := 0
	for i, ft := range d.Footer {
		at := fmt.Sprintf("/footer/%d", i)
		f.footer = append(f.footer, footer{row: c.row(at+"/row", ft.Row), means: ft.Means, held: ft.Held, withEmpty: ft.WithEmpty, wraps: ft.Wraps, above: ft.Above, draft: ft.Draft, room: ft.Room})
		c.oneOf(at+"/means", ft.Means, meansReady, meansHint, meansBusy, meansStarting, meansBlocked)
		if (ft.Means == meansBlocked) != (ft.Held != "") {
			c.fail(at+"/held", "belongs to means %q and to no other", meansBlocked)
		}
		if ft.Above && (ft.Means != meansHint || d.Composer.Frame == nil) {
			c.fail(at+"/above", "belongs to a hint below a framed composer")
		}
		if ft.Means == meansReady {
			ready++
		}
	}
	if ready == 0 {
		c.fail("/footer", "has no row that means %q: nothing could ever be idle", meansReady)
	}
	f.busy = busy{window: d.Busy.Window, rows: c.rowList("/busy/rows", d.Busy.Rows), suspects: c.rowList("/busy/suspects", d.Busy.Suspects)}
	c.within("/busy/window", d.Busy.Window, 1, maxWindow)
	if len(d.Busy.Rows) == 0 {
		c.fail("/busy/rows", "is empty: a running turn could not be told from an idle pane")
	}
	f.popups.window = d.Popups.Window
	c.within("/popups/window", d.Popups.Window, 1, maxWindow)
	for i, p := range d.Popups.Rows {
		at := fmt.Sprintf("/popups/rows/%d", i)
		c.oneOf(at+"/where", p.Where, "above", "below")
		f.popups.rows = append(f.popups.rows, popup{row: c.row(at+"/row", p.Row), below: p.Where == "below"})
	}
	f.notes = c.rowList("/notes", d.Notes)
	seen := map[string]bool{}
	for i, dj := range d.Dialogs {
		at := fmt.Sprintf("/dialogs/%d", i)
		if seen[dj.Name] {
			c.fail(at+"/name", "is used twice")
		}
		seen[dj.Name] = true
		if dj.Like != "" {
			dj = c.inherit(at, dj, d.Dialogs)
		}
		f.dialogs = append(f.dialogs, c.dialog(at, dj))
	}
	f.pages = c.pages("/pages", d.Pages, d.Dialogs)
	f.panels = c.rowList("/panels", d.Panels)
	f.unnamed = c.rowList("/unnamed", d.Unnamed)
	f.exited = exited{window: d.Exited.Window, rows: c.rowList("/exited/rows", d.Exited.Rows)}
	if len(d.Exited.Rows) > 0 {
		c.within("/exited/window", d.Exited.Window, 1, maxWindow)
	}
	f.records = c.records("/records", d.Records)
	f.native = c.native("/native", d.Native)
	return f
}

var wordPattern = regexp.MustCompile(`^[a-z][a-z0-9_-]*$`)

func (c *compiler) versions(v versionsJSON) (oldest *semver.Version, tested []string) {
	oldest, err := semver.StrictNewVersion(v.Oldest)
	if err != nil {
		c.fail("/versions/oldest", "is not a semantic version")
		oldest = semver.New(0, 0, 0, "", "")
	}
	if len(v.Tested) == 0 {
		c.fail("/versions/tested", "is empty")
	}
	for i, s := range v.Tested {
		t, err := semver.StrictNewVersion(s)
		if err != nil {
			c.fail(fmt.Sprintf("/versions/tested/%d", i), "is not a semantic version")
		} else if t.LessThan(oldest) {
			c.fail(fmt.Sprintf("/versions/tested/%d", i), "is older than oldest")
		}
	}
	return oldest, v.Tested
}

func (c *compiler) composer(at string, j composerJSON) composer {
	out := composer{column: j.Column, indent: j.Indent, placeholder: c.style(at+"/placeholder", j.Placeholder),
		pasted: c.row(at+"/pasted", j.Pasted), headroom: j.Headroom, tall: j.Tall,
		scrollMark: j.Scroll.Mark, scrollStyle: c.style(at+"/scroll/style", j.Scroll.Style), scrollTop: j.Scroll.Top,
		gapText: j.Gap, frame: c.optional(at+"/frame", j.Frame), scrollFrame: c.optional(at+"/scroll/frame", j.Scroll.Frame)}
	if j.Cursor != nil {
		style := c.style(at+"/cursor", *j.Cursor)
		out.cursor = &style
		if *j.Cursor == (styleJSON{}) {
			c.fail(at+"/cursor", "tests nothing: every draft could be a placeholder")
		}
	}
	if j.Gap != "" && (len([]rune(j.Gap)) != 1 || j.Indent != j.Column+2) {
		c.fail(at+"/gap", "is not the one character between marker and text")
	}
	for _, f := range []struct {
		at  string
		row *rowJSON
	}{{at + "/frame", j.Frame}, {at + "/scroll/frame", j.Scroll.Frame}} {
		if f.row != nil && !f.row.Full {
			c.fail(f.at+"/full", "is not set: a row of a draft could be a frame")
		}
	}
	if j.Scroll.Frame != nil && j.Frame == nil {
		c.fail(at+"/scroll/frame", "the composer has no frame")
	}
	c.within(at+"/headroom", j.Headroom, 0, maxWindow)
	c.within(at+"/tall", j.Tall, 0, 100)
	c.within(at+"/scroll/top", j.Scroll.Top, 0, maxWindow)
	if j.Scroll.Mark != "" && j.Scroll.Style == (styleJSON{}) {
		c.fail(at+"/scroll/style", "tests nothing: a draft could hold the mark")
	}
	c.within(at+"/column", j.Column, 0, 200)
	c.within(at+"/indent", j.Indent, j.Column+1, 200)
	if j.Placeholder == (styleJSON{}) {
		c.fail(at+"/placeholder", "tests nothing: every draft would be a placeholder")
	}
	ordinary := 0
	for i, m := range j.Markers {
		mat := fmt.Sprintf("%s/markers/%d", at, i)
		if len([]rune(m.Text)) != 1 || screen.Width([]rune(m.Text)[0]) == 0 {
			c.fail(mat+"/text", "is not one character")
		}
		if m.Style == (styleJSON{}) {
			c.fail(mat+"/style", "tests nothing: an echoed request would be a composer")
		}
		if m.Held == "" && !m.Busy {
			ordinary++
		}
		out.markers = append(out.markers, marker{name: m.Name, text: m.Text, held: m.Held, busy: m.Busy, style: c.style(mat+"/style", m.Style)})
	}
	if ordinary == 0 {
		c.fail(at+"/markers", "has no ordinary marker")
	}
	return out
}

func (c *compiler) rowList(at string, list []rowJSON) []row {
	var out []row
	for i, j := range list {
		out = append(out, c.row(fmt.Sprintf("%s/%d", at, i), j))
	}
	return out
}

func (c *compiler) row(at string, j rowJSON) row {
	out := row{name: j.Name, re: c.whole(at+"/text", j.Text), full: j.Full}
	if j.Name == "" {
		c.fail(at+"/name", "is empty")
	}
	if out.re == nil {
		return out
	}
	for name, sj := range j.Style {
		index := 0
		if name != "row" {
			if index = out.re.SubexpIndex(name); index < 0 {
				c.fail(at+"/style/"+name, "text has no such group")
				continue
			}
		}
		if sj == (styleJSON{}) {
			c.fail(at+"/style/"+name, "tests nothing")
		}
		out.groups = append(out.groups, group{index: index, name: name, style: c.style(at+"/style/"+name, sj)})
	}
	return out
}

// whole compiles an expression that must match a text from end to end.
func (c *compiler) whole(at, text string) *regexp.Regexp {
	if text == "" {
		c.fail(at, "is empty")
		return nil
	}
	if re, ok := c.exprs[text]; ok {
		return re
	}
	re, err := regexp.Compile(`\A(?:` + text + `)\z`)
	if err != nil {
		c.fail(at, "%v", err)
		return nil
	}
	c.exprs[text] = re
	return re
}

func (c *compiler) style(at string, j styleJSON) style {
	var out style
	for _, a := range []struct {
		attr screen.Attr
		want *bool
	}{{screen.Bold, j.Bold}, {screen.Dim, j.Dim}, {screen.Italic, j.Italic}, {screen.Underline, j.Underline}, {screen.Reverse, j.Reverse}} {
		if a.want == nil {
			continue
		}
		if *a.want {
			out.set |= a.attr
		} else {
			out.clear |= a.attr
		}
	}
	out.fg = c.color(at+"/fg", j.FG)
	out.bg = c.color(at+"/bg", j.BG)
	return out
}

func (c *compiler) color(at, s string) colorTest {
	if s == "" {
		return colorTest{}
	}
	rest, not := strings.CutPrefix(s, "!")
	col, err := screen.ParseColor(rest)
	if err != nil {
		c.fail(at, "%v", err)
	}
	return colorTest{color: col, on: true, not: not}
}

func (c *compiler) key(at, s string) terminal.Key {
	k := terminal.Key(s)
	if !k.Valid() {
		c.fail(at, "%q is not a key that may be pressed", s)
	}
	return k
}

func (c *compiler) keyList(at string, list []string) []terminal.Key {
	var out []terminal.Key
	for i, s := range list {
		out = append(out, c.key(fmt.Sprintf("%s/%d", at, i), s))
	}
	return out
}

func (c *compiler) within(at string, n, lo, hi int) {
	if n < lo || n > hi {
		c.fail(at, "is %d, not within %d..%d", n, lo, hi)
	}
}

func (c *compiler) oneOf(at, s string, list ...string) {
	for _, l := range list {
		if s == l {
			return
		}
	}
	c.fail(at, "%q is not one of %s", s, strings.Join(list, ", "))
}
