package launch

import (
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// Bounds of a spec.
const (
	maxSpec      = 64 << 10
	maxName      = 64
	maxArguments = 256
	maxPath      = 4096
	maxList      = 256
	mostTTL      = 24 * time.Hour
	leastGrace   = time.Second
	mostGrace    = time.Minute
	mostReady    = 5 * time.Minute

	// MaxArtifactFiles and MaxArtifactBytes bound what a daemon leaves as evidence.
	MaxArtifactFiles = 1000
	MaxArtifactBytes = 64 << 20
)

// Defaults of a spec.
const (
	DefaultProfile  = "station"
	DefaultProvider = "local"
	DefaultGrace    = 10 * time.Second
	DefaultReady    = time.Minute
)

// Spec is what an operator asks for (station §6.1).
type Spec struct {
	Name          string     `json:"name"`
	Profile       string     `json:"profile"`
	Provider      string     `json:"provider"`
	Workspace     Workspace  `json:"workspace"`
	Command       Command    `json:"command"`
	Workdir       string     `json:"workdir"` // in the workspace
	Env           Env        `json:"env"`
	Harness       Harness    `json:"harness"`
	Port          int        `json:"port"` // the daemon's own; 0 lets stationd choose
	Readiness     Readiness  `json:"readiness"`
	Bridge        *Bridge    `json:"bridge"` // nil: no way in
	DaemonAuth    DaemonAuth `json:"daemonAuth"`
	EgressProfile string     `json:"egressProfile"`
	TTL           string     `json:"ttl"`  // "8h"
	Idle          string     `json:"idle"` // "45m"; "0" is off
	GraceMS       int64      `json:"graceMs"`
	RunAs         *User      `json:"run_as"`
	Artifacts     Artifacts  `json:"artifacts"`
	Loopback      string     `json:"loopback"`      // strict, contained
	RestartPolicy string     `json:"restartPolicy"` // never

	AllowRoot              bool `json:"allow_root"`
	AcceptWeakContainment  bool `json:"accept_weak_containment"`
	AcceptUnenforcedEgress bool `json:"accept_unenforced_egress"`
	ModelAccess            any  `json:"modelAccess"` // to be refused
}

// Workspace is a git work tree to copy. Without a source the workspace is empty.
type Workspace struct {
	Source  string `json:"source"`  // absolute directory
	Ref     string `json:"ref"`     // a commit instead of the files as they are
	Include string `json:"include"` // "untracked": files that git does not ignore, too
}

// Env is what a daemon's environment gets besides the fixed part.
type Env struct {
	Set   map[string]string `json:"set"`
	Allow []string          `json:"allow"` // names, or NAME*, of stationd's own environment
}

// Harness says what the daemon is, for evidence, and where it comes from.
type Harness struct {
	Name     string    `json:"name"`
	Artifact *Artifact `json:"artifact"` // nil: a file of the workspace or of the system
}

// Artifact is a harness from outside the workspace, with what proves it.
type Artifact struct {
	Path     string    `json:"path"` // absolute; or
	URL      string    `json:"url"`  // https
	SHA256   string    `json:"sha256"`
	Minisign *Minisign `json:"minisign"`
}

// Minisign is a reviewed key and a signature of the artifact.
type Minisign struct {
	PublicKey string `json:"publicKey"`
	Signature string `json:"signature"` // the text of the .minisig file
}

// Readiness says how a daemon is asked whether it is there.
type Readiness struct {
	HTTPPath  string `json:"http_path"`
	TCP       bool   `json:"tcp"`
	TimeoutMS int64  `json:"timeoutMs"`
}

// Bridge lets clients in through the gate.
type Bridge struct {
	PathPrefix  string       `json:"pathPrefix"`
	HeaderAllow []string     `json:"headerAllow"`
	Limits      BridgeLimits `json:"limits"`
}

// BridgeLimits are the gate's; 0 means its default.
type BridgeLimits struct {
	Body          int64 `json:"body"`
	Answer        int64 `json:"answer"`
	HeaderWaitMS  int64 `json:"headerWaitMs"`
	Requests      int64 `json:"requests"`
	Streams       int64 `json:"streams"`
	TicketStreams int64 `json:"ticketStreams"`
}

// DaemonAuth says how a daemon gets its credential and where the gate puts it.
type DaemonAuth struct {
	Mode   string `json:"mode"`   // none, env:NAME, file
	Inject string `json:"inject"` // bearer, basic:USER, header:NAME
}

// Variable is the one that stationd fills, "" for none.
func (a DaemonAuth) Variable() string {
	name, _ := strings.CutPrefix(a.Mode, "env:")
	if name == a.Mode {
		return ""
	}
	return name
}

// User is a uid and its gid.
type User struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// Artifacts are files in the workspace that evidence lists.
type Artifacts struct {
	Paths    []string `json:"paths"`
	MaxBytes int64    `json:"maxBytes"`
}

// Parse reads a spec strictly and checks what does not depend on a profile or a
// machine. Model access is refused before anything else is looked at.
func Parse(data []byte) (Spec, error) {
	if err := refuseModelAccess(data, maxSpec); err != nil {
		return Spec{}, err
	}
	var s Spec
	if err := strictjson.Decode(data, &s, strictjson.Limits{MaxBytes: maxSpec}); err != nil {
		return Spec{}, fault.New(fault.SpecInvalid, "read the spec: %w", err)
	}
	if err := s.check(); err != nil {
		return Spec{}, fault.New(fault.SpecInvalid, "read the spec: %w", err)
	}
	return s.withDefaults(), nil
}

// refuseModelAccess looks for a modelAccess with content, in whatever object of
// the document. A document that cannot be read is left to its decoder.
func refuseModelAccess(data []byte, most int) error {
	tree, err := strictjson.Parse(data, strictjson.Limits{MaxBytes: most})
	if err == nil && asksModelAccess(tree) {
		return fault.New(fault.ModelAccess, "read modelAccess: it does not exist in this version").
			WithHint("leave modelAccess out; model and tool credentials are not delivered")
	}
	return nil
}

func asksModelAccess(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if name == "set" {
				continue // variables have names of their own
			}
			if strings.EqualFold(strings.ReplaceAll(name, "_", ""), "modelaccess") && !empty(value) || asksModelAccess(value) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, asksModelAccess)
	}
	return false
}

// empty reports whether a member says nothing.
func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	}
	return false
}

func (s Spec) withDefaults() Spec {
	or := func(p *string, value string) {
		if *p == "" {
			*p = value
		}
	}
	or(&s.Profile, DefaultProfile)
	or(&s.Loopback, "strict")
	or(&s.RestartPolicy, "never")
	or(&s.DaemonAuth.Mode, "none")
	if s.Readiness.TimeoutMS == 0 {
		s.Readiness.TimeoutMS = DefaultReady.Milliseconds()
	}
	if s.GraceMS == 0 {
		s.GraceMS = DefaultGrace.Milliseconds()
	}
	if s.Artifacts.MaxBytes == 0 {
		s.Artifacts.MaxBytes = MaxArtifactBytes
	}
	if s.Bridge != nil && s.Bridge.PathPrefix == "" {
		b := *s.Bridge
		b.PathPrefix = "/"
		s.Bridge = &b
	}
	s.Workdir = workdirOf(s.Workdir)
	return s
}

var (
	plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)
	refName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`) // no option, no range, no @{…}
)

func (s Spec) check() error {
	for name, text := range map[string]string{"name": s.Name, "profile": s.Profile, "provider": s.Provider, "egressProfile": s.EgressProfile, "harness.name": s.Harness.Name} {
		if text != "" && (len(text) > maxName || !plainName.MatchString(text)) {
			return fmt.Errorf("%s: 1 to %d letters, digits, dots, - and _", name, maxName)
		}
	}
	if s.Name == "" {
		return fmt.Errorf("name is missing")
	}
	for _, step := range []func() error{
		s.checkCommand, s.checkWorkspace, s.checkDaemon, s.checkTimes, s.checkArtifact,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (s Spec) checkCommand() error {
	c := s.Command
	if (len(c.Argv) > 0) == (c.Shell != "") {
		return fmt.Errorf("command: exactly one of argv and shell")
	}
	if len(c.Argv) > maxArguments {
		return fmt.Errorf("command.argv: more than %d arguments", maxArguments)
	}
	for i, a := range c.Words() {
		if strings.ContainsRune(a, 0) || !utf8.ValidString(a) {
			return fmt.Errorf("command: argument %d is not text", i)
		}
	}
	if c.Shell != "" && s.Harness.Artifact != nil {
		return fmt.Errorf("command: a harness from outside is executed with argv, not by a shell")
	}
	if !local(s.Workdir) {
		return fmt.Errorf("workdir: not a path in the workspace")
	}
	if c.Shell == "" && s.Harness.Artifact == nil && !filepath.IsAbs(c.Argv[0]) && (c.Argv[0] == "" || !local(path.Join(workdirOf(s.Workdir), c.Argv[0]))) {
		return fmt.Errorf("command.argv[0]: neither absolute nor in the workspace")
	}
	return nil
}

func (s Spec) checkWorkspace() error {
	w := s.Workspace
	switch {
	case w.Source != "" && (!filepath.IsAbs(w.Source) || len(w.Source) > maxPath || strings.ContainsRune(w.Source, 0)):
		return fmt.Errorf("workspace.source: not an absolute path")
	case w.Ref != "" && (w.Source == "" || len(w.Ref) > maxPath || !refName.MatchString(w.Ref) || strings.Contains(w.Ref, "..")):
		return fmt.Errorf("workspace.ref: not the name of a commit of a source")
	case w.Include != "" && (w.Include != "untracked" || w.Source == "" || w.Ref != ""):
		return fmt.Errorf("workspace.include: only untracked, and without a ref")
	}
	if len(s.Artifacts.Paths) > maxList || s.Artifacts.MaxBytes < 0 || s.Artifacts.MaxBytes > MaxArtifactBytes {
		return fmt.Errorf("artifacts: over %d paths or %d bytes", maxList, MaxArtifactBytes)
	}
	for i, p := range s.Artifacts.Paths {
		if p == "" || !local(p) {
			return fmt.Errorf("artifacts.paths[%d]: not a path in the workspace", i)
		}
	}
	return nil
}

func (s Spec) checkDaemon() error {
	a := s.DaemonAuth
	variable := a.Variable()
	switch {
	case s.Port != 0 && (s.Port < 1024 || s.Port > 65535 || s.Port == 3128):
		return fmt.Errorf("port: 1024 to 65535, and not 3128, which is the proxy's")
	case s.Readiness.HTTPPath != "" && s.Readiness.TCP:
		return fmt.Errorf("readiness: http_path or tcp, not both")
	case s.Readiness.HTTPPath != "" && !plainPath(s.Readiness.HTTPPath):
		return fmt.Errorf("readiness.http_path: not a path")
	case s.Bridge != nil && s.Bridge.PathPrefix != "" && !plainPath(s.Bridge.PathPrefix):
		return fmt.Errorf("bridge.pathPrefix: not a path")
	case s.Bridge != nil && len(s.Bridge.HeaderAllow) > maxList:
		return fmt.Errorf("bridge.headerAllow: more than %d", maxList)
	case a.Mode != "" && a.Mode != "none" && a.Mode != "file" && !envName.MatchString(variable):
		return fmt.Errorf("daemonAuth.mode: none, file or env:NAME")
	case variable != "" && refusedName(variable):
		return fmt.Errorf("daemonAuth.mode: the variable is one that a daemon never gets")
	case (a.Mode == "" || a.Mode == "none") != (a.Inject == ""):
		return fmt.Errorf("daemonAuth: mode and inject go together")
	case s.Loopback != "" && s.Loopback != "strict" && s.Loopback != "contained":
		return fmt.Errorf("loopback: strict or contained")
	case s.RestartPolicy != "" && s.RestartPolicy != "never":
		return fmt.Errorf("restartPolicy: only never; a daemon that ended is not started again")
	case s.RunAs != nil && (s.RunAs.UID < 0 || s.RunAs.GID < 0):
		return fmt.Errorf("run_as: not a user")
	}
	if b := s.Bridge; b != nil {
		for name, v := range map[string]int64{"body": b.Limits.Body, "answer": b.Limits.Answer, "headerWaitMs": b.Limits.HeaderWaitMS, "requests": b.Limits.Requests, "streams": b.Limits.Streams, "ticketStreams": b.Limits.TicketStreams} {
			if v < 0 || v > 1<<40 {
				return fmt.Errorf("bridge.limits.%s: out of bounds", name)
			}
		}
	}
	return nil
}

func (s Spec) checkTimes() error {
	if s.GraceMS != 0 && (s.GraceMS < leastGrace.Milliseconds() || s.GraceMS > mostGrace.Milliseconds()) {
		return fmt.Errorf("graceMs: %d to %d", leastGrace.Milliseconds(), mostGrace.Milliseconds())
	}
	if s.Readiness.TimeoutMS < 0 || s.Readiness.TimeoutMS > mostReady.Milliseconds() {
		return fmt.Errorf("readiness.timeoutMs: 0 to %d", mostReady.Milliseconds())
	}
	if _, err := duration(s.TTL, time.Second); err != nil {
		return fmt.Errorf("ttl: %w", err)
	}
	if _, err := duration(s.Idle, 0); err != nil {
		return fmt.Errorf("idle: %w", err)
	}
	return nil
}

func (s Spec) checkArtifact() error {
	a := s.Harness.Artifact
	if a == nil {
		return nil
	}
	switch {
	case (a.Path == "") == (a.URL == ""):
		return fmt.Errorf("harness.artifact: exactly one of path and url")
	case a.Path != "" && (!filepath.IsAbs(a.Path) || strings.ContainsRune(a.Path, 0)):
		return fmt.Errorf("harness.artifact.path: not absolute")
	case a.SHA256 != "" && !hexDigest.MatchString(a.SHA256):
		return fmt.Errorf("harness.artifact.sha256: not 64 lower-case hexadecimal digits")
	case a.Minisign != nil && (a.Minisign.PublicKey == "" || a.Minisign.Signature == ""):
		return fmt.Errorf("harness.artifact.minisign: publicKey and signature")
	}
	return nil
}

// duration reads a Go duration from least to a day; "" is 0 with no complaint.
func duration(text string, least time.Duration) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("not a time such as 45m")
	}
	if d < least || d > mostTTL {
		return 0, fmt.Errorf("not between %v and %v", least, mostTTL)
	}
	return d, nil
}

// local accepts a relative path that stays where it begins; "" is that place.
func local(p string) bool {
	return p == "" || len(p) <= maxPath && filepath.IsLocal(p) && !strings.ContainsRune(p, 0) && utf8.ValidString(p)
}

// plainPath accepts a URL path without anything to decode.
func plainPath(p string) bool {
	if p == "" || p[0] != '/' || len(p) > maxPath || path.Clean(p) != strings.TrimSuffix(p, "/") && p != "/" {
		return false
	}
	return !strings.ContainsFunc(p, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`%?#;\"<>^{}|`+"`", r) })
}
