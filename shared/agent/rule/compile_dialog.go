package rule

import (
	"fmt"
	"regexp"

	"drawbridge/shared/agent"
	"drawbridge/shared/terminal"
)

// The compiled forms of a dialog and its members.
type (
	options struct {
		selected, other row
		indent, min     int
		end             *regexp.Regexp
		between, more   *row
	}
	extract struct {
		to, form, rows, join string
		start, stop          *regexp.Regexp
		indent               int
		after, until         *row
		last                 bool
		each                 []row
		required             bool
	}
	answer struct {
		option   *regexp.Regexp // nil: no option is looked for
		selected bool
		move     bool
		keys     []terminal.Key
	}
	dialog struct {
		name, kind           string
		state                agent.State
		top, title, question *row
		footer, cut          *row
		above, body          []row
		options              *options
		extract              []extract
		approve, reject      *answer
	}
)

// inherit fills what dialog j leaves out from the one that it is like.
func (c *compiler) inherit(at string, j dialogJSON, all []dialogJSON) dialogJSON {
	for _, base := range all {
		if base.Name != j.Like || base.Like != "" {
			continue
		}
		if j.State == "" {
			j.State = base.State
		}
		if j.Kind == "" {
			j.Kind = base.Kind
		}
		for _, m := range []struct {
			own  **rowJSON
			from *rowJSON
		}{{&j.Top, base.Top}, {&j.Title, base.Title}, {&j.Question, base.Question}, {&j.Footer, base.Footer}} {
			if *m.own == nil {
				*m.own = m.from
			}
		}
		if j.Above == nil {
			j.Above = base.Above
		}
		if j.Options == nil {
			j.Options = base.Options
		}
		if j.Approve == nil {
			j.Approve = base.Approve
		}
		if j.Reject == nil {
			j.Reject = base.Reject
		}
		return j
	}
	c.fail(at+"/like", "%q is not a dialog that stands for itself", j.Like)
	return j
}

func (c *compiler) dialog(at string, j dialogJSON) dialog {
	out := dialog{name: j.Name, kind: j.Kind, state: agent.State(j.State), top: c.optional(at+"/top", j.Top), title: c.optional(at+"/title", j.Title),
		question: c.optional(at+"/question", j.Question), footer: c.optional(at+"/footer", j.Footer), above: c.rowList(at+"/above", j.Above),
		body: c.rowList(at+"/body", j.Body), cut: c.optional(at+"/cut", j.Cut)}
	if !wordPattern.MatchString(j.Name) {
		c.fail(at+"/name", "is not a lower case word")
	}
	c.oneOf(at+"/state", j.State, string(agent.Approval), string(agent.Question), string(agent.Blocked))
	if asks := j.State != string(agent.Blocked); asks != (j.Kind != "") {
		c.fail(at+"/kind", "belongs to approval and question and to no other state")
	}
	if j.Options != nil {
		out.options = c.options(at+"/options", *j.Options, j.Question != nil)
	}
	for i, e := range j.Extract {
		out.extract = append(out.extract, c.extract(fmt.Sprintf("%s/extract/%d", at, i), e))
	}
	out.approve = c.answer(at+"/approve", j.Approve, true)
	out.reject = c.answer(at+"/reject", j.Reject, false)
	headless := j.Title == nil && j.Options != nil && j.Options.More != nil // proven to be out of sight
	if j.State == string(agent.Approval) {
		// An approval without these proofs could be a picture of one.
		if j.Options == nil {
			c.fail(at+"/options", "is missing: an approval needs a highlighted option as proof")
		}
		if !headless && (j.Title == nil || len(j.Title.Style) == 0) {
			c.fail(at+"/title/style", "is missing: an approval needs its title's style as proof")
		}
		if j.Reject == nil {
			c.fail(at+"/reject", "is missing: an approval can be refused")
		}
		if headless && j.Approve != nil {
			c.fail(at+"/approve", "without a title nothing is allowed")
		}
	} else if j.Approve != nil || j.Reject != nil {
		c.fail(at, "only an approval has approve and reject")
	}
	if j.State == string(agent.Question) && j.Title == nil {
		c.fail(at+"/title", "is missing")
	}
	if j.Title == nil && !headless && (j.Options != nil || j.Top != nil || len(j.Body) > 0 || len(j.Extract) > 0 || j.Cut != nil) {
		c.fail(at, "without a title there is no region to look at")
	}
	if j.Footer == nil && (j.Options == nil || j.Options.End == "") {
		c.fail(at+"/footer", "is missing, and the options have no end: nothing is last")
	}
	if j.Question != nil && j.Options == nil {
		c.fail(at+"/question", "stands above options, and there are none")
	}
	return out
}

func (c *compiler) optional(at string, j *rowJSON) *row {
	if j == nil {
		return nil
	}
	r := c.row(at, *j)
	return &r
}

func (c *compiler) options(at string, j optionsJSON, asked bool) *options {
	out := &options{selected: c.row(at+"/selected", j.Selected), other: c.row(at+"/other", j.Other), indent: j.Indent, min: j.Min,
		between: c.optional(at+"/between", j.Between), more: c.optional(at+"/more", j.More)}
	for _, r := range []struct {
		at  string
		row row
	}{{at + "/selected/text", out.selected}, {at + "/other/text", out.other}} {
		if r.row.re == nil {
			continue
		}
		if r.row.re.SubexpIndex("label") < 0 {
			c.fail(r.at, "needs the group label")
		}
		if r.row.re.SubexpIndex("n") < 0 && !asked {
			c.fail(r.at, "needs the group n, or the dialog a question: nothing says where the options begin")
		}
	}
	if j.End != "" {
		out.end = c.whole(at+"/end", j.End)
	}
	if len(j.Selected.Style) == 0 {
		c.fail(at+"/selected/style", "is missing: the highlighted option is told by its style")
	}
	c.within(at+"/indent", j.Indent, 1, 200)
	c.within(at+"/min", j.Min, 1, maxOptions)
	return out
}

func (c *compiler) extract(at string, j extractJSON) extract {
	out := extract{to: j.To, form: j.Form, rows: j.Rows, join: j.Join, indent: j.Indent, required: j.Required, last: j.Last,
		after: c.optional(at+"/after", j.After), until: c.optional(at+"/until", j.Until), each: c.rowList(at+"/each", j.Each)}
	c.oneOf(at+"/to", j.To, "command", "reason")
	c.within(at+"/indent", j.Indent, 0, 200)
	if len(j.Each) > 0 {
		if j.Form != "" || j.Rows != "" {
			c.fail(at, "each does not go with form and rows")
		}
		if j.Start != "" {
			if out.start = c.whole(at+"/start", j.Start); out.start != nil && out.start.SubexpIndex("value") < 0 {
				c.fail(at+"/start", "has no group value")
			}
		}
		if j.Stop != "" {
			out.stop = c.whole(at+"/stop", j.Stop)
		}
		return out
	}
	if j.After != nil || j.Last || j.Stop != "" {
		c.fail(at, "after, last and stop go with each")
	}
	out.start = c.whole(at+"/start", j.Start)
	c.oneOf(at+"/rows", j.Rows, "one", "paragraph", "rest")
	if out.form == "" {
		out.form = "{value}"
	}
	if out.start != nil {
		for _, m := range placePattern.FindAllStringSubmatch(out.form, -1) {
			if out.start.SubexpIndex(m[2]) < 0 {
				c.fail(at+"/form", "start has no group %s", m[2])
			}
		}
	}
	return out
}

// placePattern is the place of a group in a form; with "snake:" a name that is
// shown as words ("Run Query") is written as the identifier it was made from.
var placePattern = regexp.MustCompile(`\{(snake:)?([a-z]+)\}`)

func (c *compiler) answer(at string, j *answerJSON, optionNeeded bool) *answer {
	if j == nil {
		return nil
	}
	out := &answer{selected: j.Selected, move: j.Move, keys: c.keyList(at+"/keys", j.Keys)}
	if j.Option != "" || optionNeeded || j.Selected || j.Move {
		out.option = c.whole(at+"/option", j.Option)
	}
	if len(j.Keys) != 1 {
		c.fail(at+"/keys", "an answer is exactly one key")
	}
	return out
}
