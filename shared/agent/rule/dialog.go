package rule

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"drawbridge/shared/agent"
	"drawbridge/shared/terminal"
)

// maxOptions bounds the options of one dialog.
const maxOptions = 50

// dialog looks for a dialog in the composer's place: its footer is the last row
// with ink, its title stands above it at the top of the screen or below a blank
// row, neither a composer nor another title stands below it, and every further
// proof of the rule holds. The first rule that holds decides.
func (r *reader) dialog() (agent.Reading, bool) {
	last := r.s.Last(len(r.s.Rows) - 1)
	for i := range r.dialogs {
		d := &r.dialogs[i]
		if !d.footer.texts(r.s.Rows[last]) {
			continue
		}
		if _, why, ok := d.footer.match(r.s.Rows[last]); !ok {
			r.failed = append(r.failed, evidence(d.name, last, last, "the footer is not drawn as one (%s)", why))
			continue
		}
		if out, ok := r.try(d, last); ok {
			return out, true
		}
	}
	return agent.Reading{}, false
}

// try proves one dialog whose footer stands in row last.
func (r *reader) try(d *dialog, last int) (agent.Reading, bool) {
	no := func(from, to int, format string, args ...any) (agent.Reading, bool) {
		r.failed = append(r.failed, evidence(d.name, from, to, format, args...))
		return agent.Reading{}, false
	}
	if d.title == nil { // blocked by its footer alone
		if at, _ := r.composer.last(r.s); at >= 0 {
			return no(at, at, "there is a composer")
		}
		return agent.Reading{State: d.state, Name: d.name, Evidence: []agent.Evidence{evidence(d.name, last, last, "the footer is the last row, and there is no composer")}}, true
	}
	foot := last
	for foot > 0 && slices.ContainsFunc(d.above, func(a row) bool { return a.matches(r.s.Rows[foot-1]) }) {
		foot--
	}
	bodyEnd, cut := foot-1, false
	var opts []option
	if d.options != nil {
		var why string
		opts, bodyEnd, cut, why = r.options(d.options, foot)
		if why != "" {
			return no(last, last, "%s", why)
		}
	}
	title := -1
	for i := bodyEnd; i >= 0; i-- {
		if d.title.matches(r.s.Rows[i]) {
			title = i
			break
		}
	}
	if title < 0 {
		return no(-1, -1, "no title in its style above the footer")
	}
	if title > 0 && !r.s.Rows[title-1].Blank() {
		return no(title-1, title-1, "the title does not stand alone")
	}
	for i := title; i <= last; i++ {
		if _, ok := r.composer.marker(r.s.Rows[i]); ok {
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
	p := &agent.Prompt{Kind: d.kind, Title: strings.TrimSpace(r.s.Rows[title].Text()), Selected: -1, Cut: cut}
	for _, x := range d.extract {
		text, ok := r.extract(d, x, title+1, end)
		if !ok && x.required && !cut {
			return no(title, bodyEnd, "no %s in it", x.to)
		}
		switch x.to {
		case "command":
			p.Command = text
		case "reason":
			p.Reason = text
		}
	}
	for i, o := range opts {
		p.Options = append(p.Options, o.label)
		if o.selected {
			p.Selected = i
		}
	}
	ev := []agent.Evidence{evidence(d.name, title, last, "the title in its style, the footer last, %d options, and no composer below", len(opts))}
	if d.state == agent.Blocked {
		return agent.Reading{State: d.state, Name: d.name, Evidence: ev}, true
	}
	if d.state == agent.Approval {
		var whyYes, whyNo string
		p.Approve, whyYes = d.approve.choose(opts)
		p.Reject, whyNo = d.reject.choose(opts)
		if cut {
			p.Approve, whyYes = nil, "the pane does not show all of it"
		}
		if whyYes != "" {
			ev = append(ev, evidence(d.name, title, last, "not approvable: %s", whyYes))
		}
		if whyNo != "" {
			ev = append(ev, evidence(d.name, title, last, "not rejectable: %s", whyNo))
		}
	}
	p.Region = r.s.Region(title, last)
	sum := sha256.Sum256(p.Region)
	p.Digest = hex.EncodeToString(sum[:])
	return agent.Reading{State: d.state, Name: d.name, Prompt: p, Evidence: ev}, true
}

// option is one numbered option.
type option struct {
	label    string
	selected bool
}

// options reads the options above row last, where a footer begins, bottom up to number 1: numbers
// without a gap, exactly one highlighted, nothing between them but further rows
// of an option. It gives the last row above them, whether the pane has no room for
// more of them, and the proof that failed.
func (r *reader) options(o *options, last int) (opts []option, bodyEnd int, cut bool, why string) {
	i := r.s.Last(last - 1)
	if o.more != nil && i >= 0 && o.more.matches(r.s.Rows[i]) {
		cut = true
		i = r.s.Last(i - 1)
	}
	var tail []string // further rows of the option above, bottom up
	want := 0
	for ; i >= 0 && len(opts) < maxOptions; i-- {
		have := r.s.Rows[i]
		sel := true
		used := o.selected
		sub, _, ok := o.selected.match(have)
		if !ok {
			sel, used = false, o.other
			sub, _, ok = o.other.match(have)
		}
		if !ok {
			if have.Blank() || have.Indent() < o.indent {
				return nil, 0, false, "rows above the footer are not options"
			}
			tail = append(tail, strings.TrimSpace(have.Text()))
			continue
		}
		n, err := strconv.Atoi(used.group(have, sub, "n"))
		if err != nil || n < 1 || want != 0 && n != want-1 {
			return nil, 0, false, "the options are not numbered in order"
		}
		want = n
		label := used.group(have, sub, "label")
		if used.re.SubexpIndex("about") < 0 { // further rows of a description are not part of the label
			slices.Reverse(tail)
			label = strings.Join(append([]string{label}, tail...), " ")
		}
		tail = nil
		opts = append(opts, option{label: label, selected: sel})
		if n == 1 {
			break
		}
	}
	if want != 1 {
		return nil, 0, false, "the options do not begin with 1"
	}
	slices.Reverse(opts)
	if len(opts) < o.min {
		return nil, 0, false, "too few options"
	}
	marked := 0
	for _, x := range opts {
		if x.selected {
			marked++
		}
	}
	if marked != 1 {
		return nil, 0, false, strconv.Itoa(marked) + " options are highlighted"
	}
	return opts, r.s.Last(i - 1), cut, ""
}

// choose gives the keys of an answer if exactly one option is the one it is for.
func (a *answer) choose(opts []option) (keys []terminal.Key, why string) {
	found := -1
	for i, o := range opts {
		if a.option.MatchString(o.label) {
			if found >= 0 {
				return nil, "two options read like it"
			}
			found = i
		}
	}
	switch {
	case found < 0:
		return nil, "no option reads like it"
	case a.selected && !opts[found].selected:
		return nil, "another option is highlighted"
	}
	return slices.Clone(a.keys), ""
}

// extract takes one text out of rows from..to. A row with which another text of
// the dialog begins ends it.
func (r *reader) extract(d *dialog, x extract, from, to int) (string, bool) {
	for i := from; i <= to; i++ {
		text := r.s.Rows[i].Text()
		sub := x.start.FindStringSubmatch(text)
		if sub == nil {
			continue
		}
		first := placePattern.ReplaceAllStringFunc(x.form, func(place string) string {
			return sub[x.start.SubexpIndex(place[1:len(place)-1])]
		})
		rows := []string{strings.TrimRight(first, " ")}
		end := r.s.Last(to)
		for j := i + 1; j <= end && x.rows != "one"; j++ {
			next := r.s.Rows[j].Text()
			if x.rows == "paragraph" && (next == "" || slices.ContainsFunc(d.extract, func(o extract) bool { return o.start.MatchString(next) && o.start != x.start })) {
				break
			}
			rows = append(rows, stripped(r.s.Rows[j].Text(), x.indent))
		}
		return strings.Join(rows, x.join), true
	}
	return "", false
}
