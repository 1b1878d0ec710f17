package profile

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

var byteOrderMark = []byte("\xEF\xBB\xBF")

// Parse reads one user Profile. The first rule that is broken, in the order of
// host-profile §2, is the error, a *ProfileError.
func Parse(data []byte) (Profile, error) { return parse(data, BuiltIns(), false) }

func parse(data []byte, reg Registry, builtIn bool) (Profile, error) {
	if len(data) > MaxFile {
		return Profile{}, refuse(fault.ProfileTooLarge, "", "more than %d bytes", MaxFile)
	}
	data = bytes.TrimPrefix(data, byteOrderMark)
	tree, err := strictjson.Parse(data, strictjson.Limits{MaxBytes: MaxFile, MaxDepth: maxDepth})
	if err != nil {
		class := fault.ProfileJSON
		if strictjson.KindOf(err) == strictjson.Encoding {
			class = fault.ProfileEncoding
		}
		return Profile{}, &ProfileError{Class: class, Path: root, Detail: err.Error(), Err: err}
	}
	r := reader{reg: reg, builtIn: builtIn}
	doc := r.document(tree)
	if r.err != nil {
		return Profile{}, r.err
	}
	return Profile{doc: doc, fingerprint: doc.fingerprint()}, nil
}

// reader walks the tree in the fixed order and keeps the first error; after one
// every further step does nothing.
type reader struct {
	reg     Registry
	builtIn bool
	err     error
}

func (r *reader) fail(err error) {
	if r.err == nil && err != nil {
		r.err = err
	}
}

func (r *reader) refuse(class fault.Code, path, format string, args ...any) {
	r.fail(refuse(class, path, format, args...))
}

// object checks shape and names: first that v is an object, then that it has
// no member but the given ones. Absent members are found when they are read.
func (r *reader) object(v any, path string, names ...string) map[string]any {
	if r.err != nil {
		return nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		r.refuse(fault.ProfileValue, path, "must be an object")
		return nil
	}
	var extra []string
	for name := range m {
		if !slices.Contains(names, name) {
			extra = append(extra, shown(name))
		}
	}
	if extra != nil {
		slices.Sort(extra)
		r.refuse(fault.ProfileUnknownField, path, "unknown members %s", strings.Join(extra, ", "))
		return nil
	}
	return m
}

// shown bounds a foreign member name in a message.
func shown(name string) string {
	const limit = 64
	if utf8.RuneCountInString(name) > limit {
		name = string([]rune(name)[:limit]) + "…"
	}
	return fmt.Sprintf("%q", name)
}

func join(path, name string) string {
	if path == root {
		return name
	}
	return path + "." + name
}

func argumentPath(i int) string { return fmt.Sprintf("callback.arguments[%d]", i) }

// member gives a required member; ok is false after any error.
func (r *reader) member(m map[string]any, path, name string) (v any, ok bool) {
	if r.err != nil {
		return nil, false
	}
	if v, ok = m[name]; !ok {
		r.refuse(fault.ProfileMissingField, join(path, name), "is required")
	}
	return v, ok
}

// text gives a required member that is a clean string.
func (r *reader) text(m map[string]any, path, name string, limit int, class fault.Code) string {
	v, ok := r.member(m, path, name)
	if !ok {
		return ""
	}
	s, ok := v.(string)
	if !ok {
		r.refuse(class, join(path, name), "must be a string")
		return ""
	}
	if why := clean(s, limit); why != "" {
		r.refuse(class, join(path, name), "%s", why)
		return ""
	}
	return s
}

// literal demands one exact string.
func (r *reader) literal(m map[string]any, path, name, want string, class fault.Code) {
	if v, ok := r.member(m, path, name); ok && v != any(want) {
		r.refuse(class, join(path, name), "must be exactly %q", want)
	}
}

func (r *reader) integer(m map[string]any, path, name string, limit int64) int64 {
	v, ok := r.member(m, path, name)
	if !ok {
		return 0
	}
	n, _ := v.(strictjson.Number)
	i, ok := n.Int64()
	if !ok || i < 1 || i > limit {
		r.refuse(fault.ProfileValue, join(path, name), "must be an integer from 1 to %d", limit)
	}
	return i
}

// list gives a required member that is an array of strings.
func (r *reader) list(m map[string]any, path, name string, least, most int) []string {
	v, ok := r.member(m, path, name)
	if !ok {
		return nil
	}
	path = join(path, name)
	a, ok := v.([]any)
	if !ok || len(a) < least || len(a) > most {
		r.refuse(fault.ProfileValue, path, "must be an array of %d to %d strings", least, most)
		return nil
	}
	out := make([]string, len(a))
	for i, e := range a {
		if out[i], ok = e.(string); !ok {
			r.refuse(fault.ProfileValue, fmt.Sprintf("%s[%d]", path, i), "must be a string")
			return nil
		}
	}
	return out
}

func (r *reader) document(tree any) document {
	var d document
	m := r.object(tree, root, "$schema", "schema", "version", "id", "revision", "compatibility", "controllerContext", "callback")
	if _, ok := m["$schema"]; ok {
		r.literal(m, root, "$schema", SchemaURL, fault.ProfileSchema)
	}
	r.literal(m, root, "schema", Schema, fault.ProfileSchema)
	if v, ok := r.member(m, root, "version"); ok {
		n, _ := v.(strictjson.Number)
		if i, ok := n.Int64(); !ok || i != Version {
			r.refuse(fault.ProfileVersion, "version", "must be the number %d", Version)
		}
	}
	d.id = r.text(m, root, "id", maxID, fault.ProfileValue)
	r.identity(d.id)
	d.revision = r.text(m, root, "revision", maxRevision, fault.ProfileValue)
	if r.err == nil && !revisionPattern.MatchString(d.revision) {
		r.refuse(fault.ProfileValue, "revision", "must match %s", revisionPattern)
	}
	r.compatibility(m, &d)
	r.controllerContext(m, &d)
	r.callback(m, &d)
	return d
}

func (r *reader) identity(id string) {
	if r.err != nil {
		return
	}
	if !idPattern.MatchString(id) {
		r.refuse(fault.ProfileValue, "id", "must match %s", idPattern)
		return
	}
	if r.builtIn {
		return
	}
	if strings.HasPrefix(id, builtInPrefix) {
		r.refuse(fault.ProfileReservedID, "id", "names beginning %s are reserved", builtInPrefix)
	} else if r.reg.Has(id) {
		r.refuse(fault.ProfileReservedID, "id", "is the id of a built-in Profile")
	}
}

func (r *reader) compatibility(m map[string]any, d *document) {
	const path = "compatibility"
	v, _ := r.member(m, root, path)
	c := r.object(v, path, "host", "range")
	d.host = r.text(c, path, "host", maxID, fault.ProfileValue)
	if r.err == nil && !idPattern.MatchString(d.host) {
		r.refuse(fault.ProfileValue, "compatibility.host", "must match %s", idPattern)
	}
	d.rangeText = r.text(c, path, "range", maxRange, fault.ProfileValue)
	if r.err != nil {
		return
	}
	var why string
	if d.parsed, why = parseRange(d.rangeText); why != "" {
		r.refuse(fault.ProfileRange, "compatibility.range", "%s", why)
	}
}

func (r *reader) controllerContext(m map[string]any, d *document) {
	const path = "controllerContext"
	v, _ := r.member(m, root, path)
	c := r.object(v, path, "driver", "sessionIdVariable", "scope")
	r.literal(c, path, "driver", EnvironmentDriver, fault.ProfileValue)
	if v, ok := r.member(c, path, "sessionIdVariable"); ok {
		d.sessionVariable = r.variable(v, "controllerContext.sessionIdVariable")
	}
	if v, ok := c["scope"]; ok && r.err == nil {
		s, _ := v.(string)
		if d.scope = Scope(s); d.scope != ScopeStartup && d.scope != ScopeRouteBound {
			r.refuse(fault.ProfileValue, "controllerContext.scope", "must be %s or %s", ScopeStartup, ScopeRouteBound)
		}
	}
}

func (r *reader) variable(v any, path string) string {
	s, ok := v.(string)
	if !ok {
		r.refuse(fault.ProfileValue, path, "must be a string")
		return ""
	}
	r.fail(checkVariable(path, s))
	return s
}

func (r *reader) callback(m map[string]any, d *document) {
	const path = "callback"
	v, _ := r.member(m, root, path)
	c := r.object(v, path, "driver", "executable", "arguments", "stdin", "environment", "timeoutMs", "maxOutputBytes", "acknowledgement")
	r.literal(c, path, "driver", CommandTransport, fault.ProfileValue)
	d.executable = r.executable(c)
	d.arguments = r.arguments(c)
	r.literal(c, path, "stdin", "${"+bodyPlaceholder+"}", fault.ProfileTemplate)
	d.allow = r.allow(c)
	d.timeoutMS = r.integer(c, path, "timeoutMs", MaxTimeout.Milliseconds())
	d.output = r.integer(c, path, "maxOutputBytes", MaxOutput)
	d.acknowledgement = r.acknowledgement(c)
}

func (r *reader) executable(c map[string]any) string {
	const path = "callback.executable"
	v, ok := r.member(c, "callback", "executable")
	if !ok {
		return ""
	}
	s, ok := v.(string)
	if !ok || s == "" || utf8.RuneCountInString(s) > maxExecutable {
		r.refuse(fault.ProfileValue, path, "must be a string of 1 to %d characters", maxExecutable)
		return ""
	}
	if why := unsafeExecutable(s); why != "" {
		r.refuse(fault.ProfileExecutableUnsafe, path, "%s", why)
	} else if why := clean(s, maxExecutable); why != "" {
		r.refuse(fault.ProfileValue, path, "%s", why)
	}
	return s
}

func (r *reader) arguments(c map[string]any) []string {
	const path = "callback.arguments"
	list := r.list(c, "callback", "arguments", 1, maxArguments)
	if r.err != nil {
		return nil
	}
	sum := 0
	for i, a := range list {
		n := utf8.RuneCountInString(a)
		if n > maxArgument {
			r.refuse(fault.ProfileValue, argumentPath(i), "must be at most %d characters", maxArgument)
			return nil
		}
		sum += n
	}
	if sum > maxArgumentSum {
		r.refuse(fault.ProfileValue, path, "together at most %d characters", maxArgumentSum)
		return nil
	}
	for i, a := range list {
		r.fail(checkTemplate(argumentPath(i), a))
	}
	r.fail(checkRequired(path, list))
	return list
}

func (r *reader) allow(c map[string]any) []string {
	const path = "callback.environment"
	v, _ := r.member(c, "callback", "environment")
	e := r.object(v, path, "allow")
	list := r.list(e, path, "allow", 0, maxAllow)
	for i, name := range list {
		at := fmt.Sprintf("%s.allow[%d]", path, i)
		r.fail(checkVariable(at, name))
		if slices.Contains(list[:i], name) {
			r.refuse(fault.ProfileVariableUnsafe, at, "%s is named twice", name)
		}
	}
	return list
}

func (r *reader) acknowledgement(c map[string]any) Acknowledgement {
	const path = "callback.acknowledgement"
	var a Acknowledgement
	v, _ := r.member(c, "callback", "acknowledgement")
	m := r.object(v, path, "disposition", "acceptanceId", "acknowledgedDeliveryId", "acknowledgedMessageId")

	v, _ = r.member(m, path, "disposition")
	d := r.object(v, path+".disposition", "jsonPointer", "mapping")
	a.Disposition = r.pointer(d, path+".disposition")
	a.Mapping = r.mapping(d, path+".disposition")

	for _, p := range []struct {
		name string
		to   *string
	}{
		{"acceptanceId", &a.AcceptanceID},
		{"acknowledgedDeliveryId", &a.DeliveryID},
		{"acknowledgedMessageId", &a.MessageID},
	} {
		at := join(path, p.name)
		v, _ := r.member(m, path, p.name)
		*p.to = r.pointer(r.object(v, at, "jsonPointer"), at)
	}
	if r.err == nil && a.DeliveryID == a.MessageID {
		r.refuse(fault.ProfileAcknowledgement, path, "acknowledgedDeliveryId and acknowledgedMessageId must be different pointers")
	}
	return a
}

func (r *reader) pointer(m map[string]any, path string) string {
	v, ok := r.member(m, path, "jsonPointer")
	if !ok {
		return ""
	}
	s, ok := v.(string)
	if !ok {
		r.refuse(fault.ProfileAcknowledgement, path+".jsonPointer", "must be a string")
		return ""
	}
	if err := strictjson.ValidPointer(s); err != nil {
		r.refuse(fault.ProfileAcknowledgement, path+".jsonPointer", "%v", err)
	}
	return s
}

func (r *reader) mapping(m map[string]any, path string) map[string]Disposition {
	v, ok := r.member(m, path, "mapping")
	if !ok {
		return nil
	}
	path += ".mapping"
	bad := func(format string, args ...any) map[string]Disposition {
		r.refuse(fault.ProfileAcknowledgement, path, format, args...)
		return nil
	}
	entries, ok := v.(map[string]any)
	if !ok || len(entries) < 1 || len(entries) > maxMapping {
		return bad("must be an object of 1 to %d members", maxMapping)
	}
	out := make(map[string]Disposition, len(entries))
	accepted := false
	for key, v := range entries {
		if !mappingKey.MatchString(key) {
			return bad("a member name must match %s", mappingKey)
		}
		s, _ := v.(string)
		switch d := Disposition(s); d {
		case Accepted, RetryableFailure, PermanentFailure, Uncertain:
			out[key] = d
			accepted = accepted || d == Accepted
		default:
			return bad("a value must be %s, %s, %s or %s", Accepted, RetryableFailure, PermanentFailure, Uncertain)
		}
	}
	if !accepted {
		return bad("one value must be %s", Accepted)
	}
	return out
}
