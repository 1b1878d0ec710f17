package rule

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/screen"
	"drawbridge/shared/terminal"
)

// maxOptions bounds the options of one dialog.
const maxOptions = 50

// dialog looks for a dialog in the composer's place: its footer (or, without one,
// its last option) is the last row with ink, its title stands above it at the top
// of the screen, below a blank row or below the dialog's own upper row, neither a
// composer nor another title stands below it, and every further proof of the rule
// holds. The first rule that holds decides.
func (r *reader) dialog() (agent.Reading, bool) {
	last := r.s.Last(len(r.s.Rows) - 1)
	for i := range r.dialogs {
		d := &r.dialogs[i]
		if d.footer == nil {
			if d.options.last(r.s.Rows[last]) {
				if out, ok := r.try(d, last, last+1); ok {
					return out, true
				}
			}
			continue
		}
		if !d.footer.texts(r.s.Rows[last]) {
			continue
		}
		if _, why, ok := d.footer.match(r.s.Rows[last]); !ok {
			r.failed = append(r.failed, evidence(d.name, last, last, "the footer is not drawn as one (%s)", why))
			continue
		}
		if out, ok := r.try(d, last, last); ok {
			return out, true
		}
	}
	return agent.Reading{}, false
}

// last reports whether a row can be the end of the options.
func (o *options) last(have screen.Row) bool {
	return o.selected.texts(have) || o.other.texts(have) || have.Indent() >= o.indent
}

// try proves one dialog that ends in row last, with its footer in row foot.
func (r *reader) try(d *dialog, last, foot int) (agent.Reading, bool) {
	no := func(from, to int, format string, args ...any) (agent.Reading, bool) {
		r.failed = append(r.failed, evidence(d.name, from, to, format, args...))
		return agent.Reading{}, false
	}
	if d.title == nil && d.options == nil { // blocked by its footer alone
		if at, _ := r.composer.last(r.s); at >= 0 {
			return no(at, at, "there is a composer")
		}
		return agent.Reading{State: d.state, Name: d.name, Evidence: []agent.Evidence{evidence(d.name, last, last, "the footer is the last row, and there is no composer")}}, true
	}
	for foot > 0 && slices.ContainsFunc(d.above, func(a row) bool { return a.matches(r.s.Rows[foot-1]) }) {
		foot--
	}
	list := optionList{bodyEnd: foot - 1}
	if d.options != nil {
		var why string
		if list, why = r.options(d, foot); why != "" {
			return no(last, last, "%s", why)
		}
	}
	bodyEnd, cut := list.bodyEnd, list.cut
	title, first := -1, 0
	if d.title == nil && !cut {
		return no(last, last, "nothing says that the title is out of sight")
	}
	if d.title != nil {
		for i := bodyEnd; i >= 0 && title < 0; i-- {
			if d.title.matches(r.s.Rows[i]) {
				title = i
			}
		}
		if title < 0 {
			return no(-1, -1, "no title in its style above the footer")
		}
		first = title
		switch {
		case d.top != nil && (title == 0 || !d.top.matches(r.s.Rows[title-1])):
			return no(title, title, "the title does not stand below its dialog's first row")
		case d.top != nil:
			first--
		case title > 0 && !r.s.Rows[title-1].Blank():
			return no(title-1, title-1, "the title does not stand alone")
		}
	}
	for i := first; i <= last; i++ {
		if _, ok := r.composer.marker(r.s, i); ok {
			return no(i, i, "a composer stands below the title")
		}
	}
	for i := title + 1; i <= bodyEnd; i++ {
		for k := range r.dialogs { // the rows between belong to a dialog further down
			if o := &r.dialogs[k]; o.title != nil && o.title.matches(r.s.Rows[i]) {
				return no(i, i, "the title of %s stands below this one's", o.name)
			}
		}
	}
	for _, want := range d.body {
		if !slices.ContainsFunc(r.s.Rows[title+1:bodyEnd+1], want.matches) {
			return no(title, bodyEnd, "no row %s between title and options", want.name)
		}
	}
	end := bodyEnd
	if d.cut != nil {
		for i := title + 1; i <= bodyEnd; i++ {
			if d.cut.matches(r.s.Rows[i]) {
				end, cut = i-1, true
				break
			}
		}
	}
	p := &agent.Prompt{Kind: d.kind, Title: strings.TrimSpace(r.s.Row(title).Text()), Selected: -1, Cut: cut}
	for _, x := range d.extract {
		text, ok := r.extract(d, x, title+1, end)
		if !ok && x.required && !cut {
			return no(title, bodyEnd, "no %s in it", x.to)
		}
		switch {
		case x.to == "command" && p.Command == "":
			p.Command = text
		case x.to == "reason" && p.Reason == "":
			p.Reason = text
		}
	}
	for i, o := range list.options {
		p.Options = append(p.Options, o.label)
		if o.selected {
			p.Selected = i
		}
	}
	ev := []agent.Evidence{evidence(d.name, first, last, "the title in its style, the end of it last, %d options, and no composer below", len(list.options))}
	if d.state == agent.Blocked {
		return agent.Reading{State: d.state, Name: d.name, Evidence: ev}, true
	}
	if d.state == agent.Approval {
		var whyYes, whyNo string
		p.Approve, whyYes = d.approve.choose(list.options, true)
		p.Reject, whyNo = d.reject.choose(list.options, false)
		if cut {
			p.Approve, whyYes = nil, "the pane does not show all of it"
		}
		if whyYes != "" {
			ev = append(ev, evidence(d.name, first, last, "not approvable: %s", whyYes))
		}
		if whyNo != "" {
			ev = append(ev, evidence(d.name, first, last, "not rejectable: %s", whyNo))
		}
	}
	p.Region = r.s.Region(first, last)
	p.Digest = digest(p.Region)
	p.Stable = digest(r.stable(first, foot-1, list.options))
	if d.state == agent.Question && !p.Cut {
		ev = append(ev, r.page(d.name, first, last, p)...)
	}
	return agent.Reading{State: d.state, Name: d.name, Prompt: p, Evidence: ev}, true
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// stable gives the text of rows from..to, and of each option only what stands
// behind the place of the highlight: it is the same whichever option is
// highlighted. A footer is not in it, since its hints follow the highlight.
func (r *reader) stable(from, to int, opts []option) []byte {
	var b []byte
	for i := from; i <= to; i++ {
		text := r.s.Rows[i].Text()
		if k := slices.IndexFunc(opts, func(o option) bool { return o.row == i }); k >= 0 {
			text = opts[k].text
		}
		b = append(append(b, text...), '\n')
	}
	return b
}

// option is one option of a dialog.
type option struct {
	label    string
	selected bool
	row      int
	text     string // of its first row, from the number or the label on
}

// optionList is the options of one dialog.
type optionList struct {
	options []option
	bodyEnd int  // the last row of the body above them
	cut     bool // the pane has no room for all rows of the dialog
}

// options reads the options above row last, where a footer begins, bottom up to
// number 1 or to the question: numbers without a gap or none at all, exactly one
// highlighted, nothing between them but further rows of an option. With an answer
// in why the proof failed.
func (r *reader) options(d *dialog, last int) (list optionList, why string) {
	o := d.options
	no := func(why string) (optionList, string) { return optionList{}, why }
	i := r.s.Last(last - 1)
	if o.more != nil && i >= 0 && o.more.matches(r.s.Rows[i]) {
		list.cut = true
		i = r.s.Last(i - 1)
	}
	var tail []string // further rows of the option above, bottom up
	want, plain := 0, false
	for ; i >= 0 && len(list.options) < maxOptions; i-- {
		have := r.s.Rows[i]
		sel := true
		used := o.selected
		sub, _, ok := o.selected.match(have)
		if !ok {
			sel, used = false, o.other
			sub, _, ok = o.other.match(have)
		}
		if !ok {
			if plain && len(tail) == 0 && d.question != nil && d.question.matches(have) {
				break
			}
			if o.between != nil && len(tail) == 0 && o.between.matches(have) {
				continue
			}
			if have.Blank() || have.Indent() < o.indent {
				return no("rows above the end of the dialog are not options")
			}
			tail = append(tail, strings.TrimSpace(have.Text()))
			continue
		}
		number := used.group(have, sub, "n")
		from := used.from(sub, "n", "label")
		n := 0
		if number == "" {
			plain = true
		} else {
			n, _ = strconv.Atoi(number)
		}
		if plain && (number != "" || want != 0) || !plain && (n < 1 || want != 0 && n != want-1) {
			return no("the options are not numbered in order")
		}
		want = n
		label := used.group(have, sub, "label")
		if used.re.SubexpIndex("about") < 0 { // further rows of a description are not part of the label
			slices.Reverse(tail)
			label = strings.Join(append([]string{label}, tail...), " ")
		}
		tail = nil
		list.options = append(list.options, option{label: label, selected: sel, row: i, text: have.Text()[from:]})
		if n == 1 {
			i--
			break
		}
	}
	if len(tail) > 0 || !plain && want != 1 {
		return no("the options do not begin with 1")
	}
	slices.Reverse(list.options)
	if len(list.options) < o.min {
		return no("too few options")
	}
	if o.end != nil && !o.end.MatchString(list.options[len(list.options)-1].label) {
		return no("the last option is not the one that ends them")
	}
	marked := 0
	for _, x := range list.options {
		if x.selected {
			marked++
		}
	}
	if marked != 1 {
		return no(strconv.Itoa(marked) + " options are highlighted")
	}
	list.bodyEnd = r.s.Last(i)
	if d.question != nil {
		if list.bodyEnd < 0 || !d.question.matches(r.s.Rows[list.bodyEnd]) {
			return no("the question does not stand above the options")
		}
		list.bodyEnd--
	}
	return list, ""
}

// lasting are words of options that allow more than this one call, or change how
// the agent asks. No rule file can choose such an option.
var lasting = []string{"always", "again", "switch to", "auto mode", "auto-mode", "accept edits", "auto-accept", "auto-approve", "bypass",
	"session", "this project", "every time", "all future", "any "}

// lasts reports whether a label says more than "this once".
func lasts(label string) bool {
	label = strings.ToLower(strings.Join(strings.Fields(label), " "))
	return slices.ContainsFunc(lasting, func(word string) bool { return strings.Contains(label, word) })
}

// choose gives the keys of an answer if exactly one option is the one it is for.
func (a *answer) choose(opts []option, allow bool) (keys []terminal.Key, why string) {
	if a == nil {
		return nil, "the rule names no option that allows it"
	}
	if a.option == nil {
		return slices.Clone(a.keys), ""
	}
	found, marked := -1, -1
	for i, o := range opts {
		if a.option.MatchString(o.label) {
			if found >= 0 {
				return nil, "two options read like it"
			}
			found = i
		}
		if o.selected {
			marked = i
		}
	}
	switch {
	case found < 0:
		return nil, "no option reads like it"
	case allow && lasts(opts[found].label):
		return nil, "the option allows more than this one call"
	case a.selected && found != marked:
		return nil, "another option is highlighted"
	case a.move:
		for ; marked < found; marked++ {
			keys = append(keys, terminal.Down)
		}
		for ; marked > found; marked-- {
			keys = append(keys, terminal.Up)
		}
	}
	return append(keys, a.keys...), ""
}

// extract takes one text out of rows from..to. A row with which another text of
// the dialog begins ends it.
func (r *reader) extract(d *dialog, x extract, from, to int) (string, bool) {
	if len(x.each) > 0 {
		return r.between(x, from, to)
	}
	for i := from; i <= to; i++ {
		text := r.s.Rows[i].Text()
		sub := x.start.FindStringSubmatch(text)
		if sub == nil {
			continue
		}
		first := placePattern.ReplaceAllStringFunc(x.form, func(place string) string {
			m := placePattern.FindStringSubmatch(place)
			value := sub[x.start.SubexpIndex(m[2])]
			if m[1] != "" {
				value = strings.ToLower(strings.Join(strings.Fields(value), "_"))
			}
			return value
		})
		rows := []string{strings.TrimRight(first, " ")}
		end := r.s.Last(to)
		for j := i + 1; j <= end && x.rows != "one"; j++ {
			next := r.s.Rows[j].Text()
			if x.until != nil && x.until.matches(r.s.Rows[j]) {
				break
			}
			if x.rows == "paragraph" && (next == "" || slices.ContainsFunc(d.extract, func(o extract) bool {
				return o.start != nil && len(o.each) == 0 && o.start.MatchString(next) && o.start != x.start
			})) {
				break
			}
			rows = append(rows, stripped(r.s.Rows[j].Text(), x.indent))
		}
		return strings.Join(rows, x.join), true
	}
	return "", false
}

// between takes the text of the rows between two others, each of which must be
// one of those that the rule knows.
func (r *reader) between(x extract, from, to int) (string, bool) {
	if x.after != nil {
		at := -1
		for i := from; i <= to && (at < 0 || x.last); i++ {
			if x.after.matches(r.s.Rows[i]) {
				at = i
			}
		}
		if at < 0 {
			return "", false
		}
		from = at + 1
	}
	end := to + 1
	if x.until != nil {
		for end = from; end <= to && !x.until.matches(r.s.Rows[end]); end++ {
		}
		if end > to {
			return "", false
		}
	}
	var rows []string
	for i := from; i < end; i++ {
		k := slices.IndexFunc(x.each, func(e row) bool { return e.matches(r.s.Rows[i]) })
		if k < 0 {
			return "", false
		}
		if e := x.each[k]; e.re.SubexpIndex("value") >= 0 {
			sub, _, _ := e.match(r.s.Rows[i])
			rows = append(rows, e.group(r.s.Rows[i], sub, "value"))
		}
	}
	if rows = x.part(rows); rows == nil {
		return "", false
	}
	text := strings.Join(rows, x.join)
	return text, strings.TrimSpace(text) != ""
}

// part gives the taken texts from start to stop, nil without a start.
func (x extract) part(texts []string) []string {
	if x.start != nil {
		k := slices.IndexFunc(texts, x.start.MatchString)
		if k < 0 {
			return nil
		}
		sub := x.start.FindStringSubmatch(texts[k])
		texts = append([]string{sub[x.start.SubexpIndex("value")]}, texts[k+1:]...)
	}
	if x.stop != nil {
		if k := slices.IndexFunc(texts, x.stop.MatchString); k >= 0 {
			texts = texts[:k]
		}
	}
	return texts
}
