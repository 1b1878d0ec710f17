package rule

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"drawbridge/shared/strictjson"
)

// The compiled forms of the records part of a rule file.
type (
	records struct {
		at, ordinal string          // names of outermost members
		outer       map[string]bool // outermost members that some rule tests
		kinds       []kind
	}
	kind struct {
		name    string
		kind    Kind
		where   []test
		take    []taken
		call    *Call
		outer   map[string]string // outermost members and the texts they must have
		needles [][]byte          // quoted texts that must occur somewhere in the line
	}
	test  struct{ in, at, equals, prefix, is string }
	taken struct {
		field  string
		source source
		set    func(*Record, string)
	}
	source struct {
		in, at, as, item, cut, with string
		parts                       *parts
		join                        []source
		required                    bool
	}
	parts struct {
		where test
		text  string
	}
)

// fields are the fields of a Record that a rule may fill.
var fields = map[string]func(*Record, string){
	"thread":         func(r *Record, s string) { r.Thread = s },
	"turn":           func(r *Record, s string) { r.Turn = s },
	"id":             func(r *Record, s string) { r.ID = s },
	"text":           func(r *Record, s string) { r.Text = s },
	"error":          func(r *Record, s string) { r.Error = s },
	"code":           func(r *Record, s string) { r.Code = s },
	"reason":         func(r *Record, s string) { r.Reason = s },
	"cwd":            func(r *Record, s string) { r.Cwd = s },
	"version":        func(r *Record, s string) { r.Version = s },
	"source":         func(r *Record, s string) { r.Source = s },
	"output":         func(r *Record, s string) { r.Output = s },
	"started":        func(r *Record, s string) { r.Started = second(s) },
	"ended":          func(r *Record, s string) { r.Ended = second(s) },
	"call.id":        func(r *Record, s string) { r.Call.ID = s },
	"call.name":      func(r *Record, s string) { r.Call.Name = s },
	"call.namespace": func(r *Record, s string) { r.Call.Namespace = s },
	"call.command":   func(r *Record, s string) { r.Call.Command = s },
	"call.cwd":       func(r *Record, s string) { r.Call.Cwd = s },
	"call.reason":    func(r *Record, s string) { r.Call.Reason = s },
	"call.arguments": func(r *Record, s string) { r.Call.Arguments = s },
}

// second reads a number of seconds since 1970, as source.text writes it.
func second(s string) time.Time {
	n, ok := strictjson.Number(s).Int64()
	if !ok {
		return time.Time{}
	}
	return time.Unix(n, 0).UTC()
}

// text gives the value of a source; false where it is missing, null or of
// another type.
func (s source) text(d *lineTree, rec *Record) (string, bool) {
	if len(s.join) > 0 {
		var out []string
		for _, j := range s.join {
			t, ok := j.text(d, rec)
			if !ok {
				return "", false
			}
			out = append(out, t)
		}
		return strings.Join(out, s.with), true
	}
	v, ok := d.at(s.in, s.at)
	if !ok {
		return "", false
	}
	switch s.as {
	case "json":
		if t, isText := v.(string); isText {
			return t, true
		}
		b, err := strictjson.Canonical(v)
		return string(b), err == nil
	case "unix":
		n, isNumber := v.(strictjson.Number)
		if !isNumber {
			return "", false
		}
		_, whole := n.Int64()
		return string(n), whole
	case "parts":
		return s.parts.combine(v, rec)
	case "lines":
		list, isList := v.([]any)
		if !isList {
			return "", false
		}
		var out []string
		for _, m := range list {
			item, _ := strictjson.Pointer(m, s.item)
			t, isText := item.(string)
			if !isText {
				return "", false
			}
			out = append(out, t)
		}
		return strings.Join(out, "\n"), true
	}
	t, isText := v.(string)
	if !isText {
		return "", false
	}
	if s.as == "id" {
		t = strings.ToLower(t)
	}
	return strings.TrimPrefix(t, s.cut), true
}

// combine puts the text parts of a list together and notes that there are others.
func (p *parts) combine(v any, rec *Record) (string, bool) {
	list, ok := v.([]any)
	if !ok {
		return "", false
	}
	var b strings.Builder
	for _, m := range list {
		part := &lineTree{tree: m}
		if !p.where.holds(part) {
			rec.Attachments = true
			continue
		}
		v, _ := part.at("", p.text)
		t, isText := v.(string)
		if !isText {
			return "", false
		}
		b.WriteString(t)
	}
	return b.String(), true
}

func (c *compiler) records(at string, j recordsJSON) records {
	out := records{outer: map[string]bool{}}
	out.at = c.member(at+"/at", j.At)
	out.ordinal = c.member(at+"/ordinal", j.Ordinal)
	if len(j.Kinds) == 0 {
		c.fail(at+"/kinds", "is empty")
	}
	for i, k := range j.Kinds {
		kat := fmt.Sprintf("%s/kinds/%d", at, i)
		compiled := c.kind(kat, k)
		for name := range compiled.outer {
			out.outer[name] = true
		}
		out.kinds = append(out.kinds, compiled)
	}
	return out
}

func (c *compiler) kind(at string, j kindJSON) kind {
	out := kind{name: j.Name, kind: Kind(j.Kind), outer: map[string]string{}}
	if j.Name == "" {
		c.fail(at+"/name", "is empty")
	}
	c.oneOf(at+"/kind", j.Kind, string(SessionMeta), string(TurnStarted), string(UserMessage), string(TurnCompleted), string(TurnFailed),
		string(TurnAborted), string(CallBegan), string(CallOutput), string(Compacted), string(Answer), string(LocalCommand), string(Queued))
	if (j.Kind == string(CallBegan)) != (j.Call != nil) {
		c.fail(at+"/call", "belongs to kind %q and to no other", CallBegan)
	}
	if j.Call != nil {
		out.call = &Call{Kind: j.Call.Kind, Escalated: j.Call.Escalated, Asks: j.Call.Asks}
		if j.Call.Kind != "" {
			c.oneOf(at+"/call/kind", j.Call.Kind, "run_command", "edit_files", "mcp_tool", "fetch", "plan", "questionnaire")
		}
	}
	if len(j.Where) == 0 {
		c.fail(at+"/where", "is empty: every line would fit")
	}
	for i, t := range j.Where {
		compiled := c.test(fmt.Sprintf("%s/where/%d", at, i), t)
		out.where = append(out.where, compiled)
		if compiled.equals == "" || compiled.in != "" {
			continue
		}
		if name, isOuter := outermost(compiled.at); isOuter {
			out.outer[name] = compiled.equals
		} else if plain(compiled.equals) {
			out.needles = append(out.needles, []byte(`"`+compiled.equals+`"`))
		}
	}
	for name, s := range j.Take {
		set, ok := fields[name]
		if !ok {
			c.fail(at+"/take/"+name, "is not a field of a record")
			continue
		}
		if strings.HasPrefix(name, "call.") && j.Kind != string(CallBegan) && j.Kind != string(CallOutput) {
			c.fail(at+"/take/"+name, "belongs to calls only")
			continue
		}
		out.take = append(out.take, taken{field: name, source: c.source(at+"/take/"+name, s), set: set})
	}
	sort.Slice(out.take, func(a, b int) bool { return out.take[a].field < out.take[b].field })
	return out
}

func (c *compiler) test(at string, j testJSON) test {
	c.pointer(at+"/at", j.At, false)
	c.pointer(at+"/in", j.In, true)
	n := 0
	for _, set := range []bool{j.Equals != "", j.Prefix != "", j.Is != ""} {
		if set {
			n++
		}
	}
	if n != 1 {
		c.fail(at, "needs exactly one of equals, prefix and is")
	}
	if j.Is != "" {
		c.oneOf(at+"/is", j.Is, "present", "absent", "true", "false")
	}
	return test{in: j.In, at: j.At, equals: j.Equals, prefix: j.Prefix, is: j.Is}
}

func (c *compiler) source(at string, j sourceJSON) source {
	out := source{in: j.In, at: j.At, as: j.As, item: j.Item, cut: j.Cut, with: j.With, required: j.Required}
	if out.as == "" {
		out.as = "text"
	}
	c.oneOf(at+"/as", out.as, "text", "id", "json", "unix", "parts", "lines")
	if len(j.Join) > 0 {
		if j.At != "" || j.In != "" {
			c.fail(at, "has both at and join")
		}
		for i, s := range j.Join {
			out.join = append(out.join, c.source(fmt.Sprintf("%s/join/%d", at, i), s))
		}
		return out
	}
	c.pointer(at+"/at", j.At, false)
	c.pointer(at+"/in", j.In, true)
	c.pointer(at+"/item", j.Item, out.as != "lines")
	if (out.as == "parts") != (j.Parts != nil) {
		c.fail(at+"/parts", "belongs to as %q and to no other", "parts")
	}
	if j.Parts != nil {
		out.parts = &parts{where: c.test(at+"/parts/where", j.Parts.Where), text: j.Parts.Text}
		c.pointer(at+"/parts/text", j.Parts.Text, false)
	}
	return out
}

// pointer checks a JSON pointer; empty is allowed only where it means "none".
func (c *compiler) pointer(at, ptr string, mayBeEmpty bool) {
	if ptr == "" {
		if !mayBeEmpty {
			c.fail(at, "is empty")
		}
		return
	}
	if err := strictjson.ValidPointer(ptr); err != nil {
		c.fail(at, "%v", err)
	}
}

// member checks a pointer to an outermost member and gives its name.
func (c *compiler) member(at, ptr string) string {
	if ptr == "" {
		return ""
	}
	name, ok := outermost(ptr)
	if !ok {
		c.fail(at, "is not a pointer to an outermost member")
	}
	return name
}

// outermost gives the member name of a pointer with one plain part.
func outermost(ptr string) (string, bool) {
	name, ok := strings.CutPrefix(ptr, "/")
	return name, ok && name != "" && !strings.ContainsAny(name, "/~")
}

// plain reports whether a text can stand in JSON only as itself between quotes,
// as far as any writer in use does it.
func plain(s string) bool {
	for _, r := range s {
		if r < 0x20 || r > 0x7e || strings.ContainsRune(`"\/<>&`, r) {
			return false
		}
	}
	return s != ""
}
