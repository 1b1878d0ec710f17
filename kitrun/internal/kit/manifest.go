package kit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"drawbridge/kitrun/internal/tree"
	"drawbridge/shared/strictjson"
)

// Contract is the only contract of an execution entry that there is.
const Contract = "kontour.kit.execution_request@1.0"

// assetLists are the optional lists of files in kit.json, in the order of checking.
var assetLists = []string{"skills", "docs", "adapters", "evals", "assets", "provisions"}

// Bounds of what is said about one kit.
const (
	maxDiagnostics = 100
	maxDiagnostic  = 500 // bytes
)

var exportForm = regexp.MustCompile(`^[$A-Z_a-z][$0-9A-Z_a-z]*$`)

// Execution is the host entry that a kit declares.
type Execution struct {
	Contract string
	Module   string // below the kit's root, with slashes
	Export   string
	Members  strictjson.Object // as written, with members that are not known
}

// Dependency names another kit.
type Dependency struct {
	ID     string
	Reason string // may be ""
}

// Manifest is a kit.json.
type Manifest struct {
	ID, Name, Version string // "" when absent or of another type
	Execution         *Execution
	Dependencies      []Dependency
	Members           strictjson.Object // all of it, as written
}

// Report is the verdict on a kit.
type Report struct {
	Manifest Manifest
	Errors   []string // each names the JSON path; none means that the kit is valid
	Warnings []string
	core     int // how many mistakes break the container itself
	mistakes int // all of them
}

// fail adds a mistake. Of many the first ones are told; all are counted.
func (r *Report) fail(format string, args ...any) {
	switch r.mistakes++; {
	case r.mistakes <= maxDiagnostics:
		r.Errors = append(r.Errors, brief(fmt.Sprintf(format, args...)))
	case r.mistakes == maxDiagnostics+1:
		r.Errors = append(r.Errors, "and more")
	}
}

// brief shortens a mistake that quotes what somebody else wrote.
func brief(s string) string {
	if len(s) <= maxDiagnostic {
		return s
	}
	return strings.ToValidUTF8(s[:maxDiagnostic], "") + "…"
}

func (r *Report) warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

// Validate checks the kit in a directory (kit §3). The error is for a directory
// that cannot be read; what is wrong with the kit is in the Report.
func Validate(dir string) (Report, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Report{}, sourceError("read the kit", err)
	}
	defer root.Close()
	var r Report
	data, err := readBelow(root, ManifestName)
	if err != nil {
		r.core++
		r.fail("%s: %s", ManifestName, err)
		return r, nil
	}
	parseManifest(data, &r)
	if r.Manifest.Members != nil {
		checkFiles(root, &r)
	}
	return r, nil
}

// parseManifest reads kit.json and checks all that needs no file beside it.
func parseManifest(data []byte, r *Report) {
	doc, repeated, err := strictjson.ParseOrdered(data, strictjson.Limits{MaxBytes: maxDocument, MaxDepth: maxNesting})
	if err != nil {
		r.core++
		r.fail("%s: invalid JSON: %s", ManifestName, err)
		return
	}
	for _, name := range repeated {
		r.warn("%s: member %q stands twice in one object; the last one counts", ManifestName, cut(name))
	}
	members, ok := doc.(strictjson.Object)
	if !ok {
		r.core++
		r.fail("$: kit.json must be a JSON object")
		return
	}
	m := &r.Manifest
	m.Members = members
	m.ID, m.Name, m.Version = text(members, "id"), text(members, "name"), text(members, "version")
	if text(members, "schema_version") != schemaVersion {
		r.core++
		r.fail(`$.schema_version: .schema_version must be "1.0"`)
	}
	if !idForm.MatchString(m.ID) {
		r.core++
		r.fail("$.id: .id must be a string of lower-case letters, digits and dashes, a letter first")
	}
	if strings.TrimSpace(m.Name) == "" {
		r.core++
		r.fail("$.name: .name must be a non-empty string")
	}
	for _, name := range []string{"product_name", "description", "version"} {
		if v, ok := members.Get(name); ok {
			if _, ok := v.(string); !ok {
				r.fail("$.%s: .%s must be a string", name, name)
			}
		}
	}
	if v, ok := members.Get("first_party"); ok {
		if _, ok := v.(bool); !ok {
			r.fail("$.first_party: .first_party must be a boolean when present")
		}
	}
	m.Dependencies = dependencies(members, r)
	m.Execution, err = parseExecution(members)
	if err != nil {
		r.fail("$.execution: %s", err)
	}
}

func dependencies(members strictjson.Object, r *Report) (out []Dependency) {
	list, ok := listOf(members, "dependencies", r)
	if !ok {
		return nil
	}
	own := text(members, "id")
	for i, entry := range list {
		at := fmt.Sprintf("$.dependencies[%d]", i)
		object, ok := entry.(strictjson.Object)
		if !ok {
			r.fail("%s: must be an object", at)
			continue
		}
		d := Dependency{ID: text(object, "kit_id"), Reason: text(object, "reason")}
		switch {
		case !idForm.MatchString(d.ID):
			r.fail("%s.kit_id: must be a kit id", at)
			continue
		case d.ID == own:
			r.fail("%s.kit_id: must not be the kit itself", at)
			continue
		case slices.ContainsFunc(out, func(o Dependency) bool { return o.ID == d.ID }):
			r.fail("%s.kit_id: duplicates %q", at, d.ID)
			continue
		}
		if v, ok := object.Get("reason"); ok {
			if _, ok := v.(string); !ok {
				r.fail("%s.reason: must be a string when present", at)
			}
		}
		out = append(out, d)
	}
	return out
}

// parseExecution gives the entry that a kit.json declares, nil when it has none.
func parseExecution(members strictjson.Object) (*Execution, error) {
	v, ok := members.Get("execution")
	if !ok {
		return nil, nil
	}
	object, ok := v.(strictjson.Object)
	if !ok {
		return nil, errors.New("must be an object")
	}
	e := &Execution{text(object, "contract"), text(object, "module"), text(object, "export"), object}
	switch {
	case e.Contract != Contract:
		return nil, fmt.Errorf("contract must be %q", Contract)
	case !strings.HasSuffix(e.Module, ".mjs"):
		return nil, errors.New("module must be a path that ends in .mjs")
	case strings.ContainsAny(e.Module, "\\\x00"):
		return nil, errors.New("module must be written with slashes")
	case slices.ContainsFunc(strings.Split(e.Module, "/"), func(part string) bool {
		return part == "" || part == "." || part == ".." || tree.Excluded(part)
	}):
		return nil, errors.New("module must be relative and inside the kit, without empty, . or .. parts and without .git, __pycache__ and .pytest_cache")
	case !exportForm.MatchString(e.Export):
		return nil, errors.New("export must be a JavaScript name of ASCII characters")
	}
	return e, nil
}

// checkFiles checks that what kit.json names is there.
func checkFiles(root *os.Root, r *Report) {
	members := r.Manifest.Members
	flows, _ := members.Get("flows")
	list, ok := flows.([]any)
	if !ok || len(list) == 0 {
		r.core++
		r.fail("$.flows: .flows must be a non-empty list")
	}
	c := checker{root: root, report: r}
	c.paths, c.ids = map[string]bool{}, map[string]bool{}
	before := r.mistakes
	for i, entry := range list {
		c.flow(fmt.Sprintf("$.flows[%d]", i), entry)
	}
	r.core += r.mistakes - before
	for _, name := range assetLists {
		list, ok := listOf(members, name, r)
		if !ok {
			continue
		}
		c.ids = map[string]bool{}
		for i, entry := range list {
			c.asset(fmt.Sprintf("$.%s[%d]", name, i), entry)
		}
	}
	if e := r.Manifest.Execution; e != nil {
		if info, err := root.Lstat(e.Module); err != nil || !info.Mode().IsRegular() {
			r.fail("$.execution.module: points at what is no regular file: %s", e.Module)
		}
	}
}

// checker looks at the entries of the lists of one kit.
type checker struct {
	root       *os.Root
	report     *Report
	paths, ids map[string]bool // seen before
}

func (c *checker) flow(at string, entry any) {
	object, ok := entry.(strictjson.Object)
	if !ok {
		c.report.fail("%s: must be an object", at)
		return
	}
	c.id(at, object)
	rel, ok := c.path(at, object)
	if !ok {
		return
	}
	if c.paths[path.Clean(rel)] { // however it is spelled
		c.report.fail("%s.path: duplicates an earlier entry: %s", at, rel)
		return
	}
	c.paths[path.Clean(rel)] = true
	data, err := readBelow(c.root, rel)
	if err != nil {
		c.report.fail("%s.path: points at a missing Flow Definition: %s: %s", at, rel, err)
		return
	}
	doc, _, err := strictjson.ParseOrdered(data, strictjson.Limits{MaxBytes: maxDocument, MaxDepth: maxNesting})
	if _, object := doc.(strictjson.Object); err != nil || !object {
		c.report.fail("%s.path: is not a JSON object: %s", at, rel)
	}
}

func (c *checker) asset(at string, entry any) {
	object, ok := entry.(strictjson.Object)
	if !ok {
		c.report.fail("%s: must be an object", at)
		return
	}
	c.id(at, object)
	rel, ok := c.path(at, object)
	if !ok {
		return
	}
	if _, err := c.root.Stat(path.Clean(rel)); err != nil {
		c.report.fail("%s.path: points at a missing file: %s", at, rel)
	}
}

// id checks the optional id and description of an entry.
func (c *checker) id(at string, object strictjson.Object) {
	for _, name := range []string{"id", "description"} {
		if v, ok := object.Get(name); ok {
			if _, ok := v.(string); !ok {
				c.report.fail("%s.%s: must be a string", at, name)
			}
		}
	}
	id := text(object, "id")
	if id == "" {
		return
	}
	if c.ids[id] {
		c.report.fail("%s.id: duplicates %q", at, cut(id))
	}
	c.ids[id] = true
}

// path gives the path of an entry when it stays inside the kit.
func (c *checker) path(at string, object strictjson.Object) (string, bool) {
	rel := text(object, "path")
	switch {
	case strings.TrimSpace(rel) == "":
		c.report.fail("%s.path: must be a non-empty string", at)
	case strings.HasPrefix(rel, "/"):
		c.report.fail("%s.path: must be relative: %s", at, rel)
	case slices.Contains(strings.FieldsFunc(rel, func(r rune) bool { return r == '/' || r == '\\' }), ".."):
		c.report.fail("%s.path: must not contain ..: %s", at, rel)
	default:
		return rel, true
	}
	return "", false
}

// readBelow reads a regular file of bounded size below a kit's root.
func readBelow(root *os.Root, name string) ([]byte, error) {
	f, err := root.OpenFile(path.Clean(name), os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO has no other end
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("is not there")
	case errors.Is(err, syscall.ENXIO): // a socket
		return nil, errors.New("is not a regular file")
	case err != nil:
		return nil, bare(err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, bare(err)
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	switch {
	case err != nil:
		return nil, bare(err)
	case len(data) > maxDocument:
		return nil, fmt.Errorf("is larger than %d bytes", maxDocument)
	}
	return data, nil
}

// bare takes the path out of an error whose place is named anyway.
func bare(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// text gives a member that is a string, "" for any other.
func text(o strictjson.Object, name string) string {
	v, _ := o.Get(name)
	s, _ := v.(string)
	return s
}

// listOf gives an optional list.
func listOf(o strictjson.Object, name string, r *Report) ([]any, bool) {
	v, ok := o.Get(name)
	if !ok {
		return nil, false
	}
	list, ok := v.([]any)
	if !ok {
		r.fail("$.%s: .%s must be a list", name, name)
	}
	return list, ok
}
