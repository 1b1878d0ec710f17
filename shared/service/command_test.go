package service_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/strictjson"
	"drawbridge/shared/testkit"
)

// sample is a program with every kind of command. Its leaves print what they got.
func sample(stdout, stderr *bytes.Buffer) *service.Program {
	var (
		common service.Common
		host   string
		many   list
		asJSON bool
	)
	return &service.Program{
		Name: "sample", Short: "shows every kind of command", Stdout: stdout, Stderr: stderr,
		Commands: []*service.Command{
			{
				Name: "serve", Short: "Serve",
				Flags: func(fs *flag.FlagSet) {
					common.Register(fs, 3*time.Second)
					fs.Var(&many, "item", "may be repeated")
				},
				Run: func(context.Context, []string) error {
					if err := common.Check(); err != nil {
						return err
					}
					fmt.Fprintln(stdout, common.StoreDir, common.LogLevel, common.Drain, strings.Join(many, "+"))
					return nil
				},
			},
			{Name: "host-profile", Short: "Profiles", Commands: []*service.Command{
				{
					Name: "validate", Args: "<path>", MinArgs: 1, Short: "Validate",
					Flags: func(fs *flag.FlagSet) {
						fs.StringVar(&host, "host", "", "host `id`")
						fs.BoolVar(&asJSON, "json", false, "print JSON")
					},
					Run: func(_ context.Context, args []string) error {
						fmt.Fprintln(stdout, host, asJSON, strings.Join(args, ","))
						switch args[0] {
						case "held":
							return fault.New(fault.LeaseHeld, "take lease: held by pid 412").WithHint("stop pid %d", 412)
						case "strange":
							return errors.New("strange\nfailure")
						case "status":
							return service.Status(5)
						}
						return nil
					},
				},
			}},
			service.Version("sample", stdout, func() []strictjson.Member { return []strictjson.Member{{Name: "schema", Value: 3}} }),
		},
	}
}

type list []string

func (l *list) String() string     { return strings.Join(*l, "+") }
func (l *list) Set(v string) error { *l = append(*l, v); return nil }

func TestProgram(t *testing.T) {
	for _, tc := range []struct {
		name   string
		args   string
		exit   int
		stdout string // exact, or a prefix when it ends in …
		stderr string
	}{
		{"flags before the argument", "host-profile validate --host a -json ./p.json", 0, "a true ./p.json\n", ""},
		{"flags after the argument", "host-profile validate ./p.json -host=a --json", 0, "a true ./p.json\n", ""},
		{"flags around the argument", "host-profile validate --json=false ./p.json --host a", 0, "a false ./p.json\n", ""},
		{"argument that looks like a flag", "host-profile validate -host a -- -json", 0, "a false -json\n", ""},
		{"dash is an argument", "host-profile validate -", 0, " false -\n", ""},
		{"names in any case", "Host-Profile VALIDATE x", 0, " false x\n", ""},
		{"failure", "host-profile validate held", 75, " false held\n", "sample: error: take lease: held by pid 412 [lease_held]\nsample: hint: stop pid 412\n"},
		{"failure as JSON", "host-profile validate held --json", 75, " true held\n{\"error\":\"lease_held\",\"message\":\"take lease: held by pid 412\",\"hint\":\"stop pid 412\"}\n", "sample: error: take lease: held by pid 412 [lease_held]\nsample: hint: stop pid 412\n"},
		{"failure without a code", "host-profile validate strange", 70, " false strange\n", "sample: error: strange failure\n"},
		{"own exit status", "host-profile validate status", 5, " false status\n", ""},
		{"too few arguments", "host-profile validate", 2, "", "sample: error: sample host-profile validate: 0 arguments given, 1 needed\nsample: hint: usage: sample host-profile validate [flags] <path>\n"},
		{"too many arguments", "host-profile validate a b --host x", 2, "", "sample: error: sample host-profile validate: unexpected argument \"b\"\nsample: hint: usage: sample host-profile validate [flags] <path>\n"},
		{"unknown flag", "host-profile validate a --hots x", 2, "", "sample: error: sample host-profile validate: flag provided but not defined: -hots\nsample: hint: sample host-profile validate -h shows the flags\n"},
		{"flag without its value", "host-profile validate a --host", 2, "", "sample: error: sample host-profile validate: flag needs an argument: -host\nsample: hint: sample host-profile validate -h shows the flags\n"},
		{"unknown command", "servr --x", 2, "", "sample: error: unknown command \"servr\"\nsample: hint: sample help lists the commands\n"},
		{"unknown command in a group", "host-profile vaildate", 2, "", "sample: error: unknown command \"host-profile vaildate\"\nsample: hint: sample help host-profile lists the commands\n"},
		{"flag before the command", "-json version", 2, "", "sample: error: sample: flag provided but not defined: -json\nsample: hint: sample -h shows the flags\n"},
		{"no command", "", 2, "", "DESCRIPTION…"},
		{"no command in a group", "host-profile", 2, "", "DESCRIPTION…"},
		{"help", "help", 0, "DESCRIPTION\n  shows every kind of command\n…", ""},
		{"help of a command", "help host-profile validate", 0, "DESCRIPTION\n  Validate\n…", ""},
		{"-h", "-h", 0, "DESCRIPTION\n  shows every kind of command\n…", ""},
		{"-h behind a command", "serve --help", 0, "DESCRIPTION\n  Serve\n…", ""},
		{"version", "version", 0, "sample …", ""},
		{"version with an argument", "version x", 2, "", "sample: error: sample version: unexpected argument \"x\"\n…"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			exit := sample(&stdout, &stderr).Main(t.Context(), strings.Fields(tc.args))
			if exit != tc.exit {
				t.Errorf("exit = %d, want %d", exit, tc.exit)
			}
			compare(t, "stdout", tc.stdout, stdout.String())
			compare(t, "stderr", tc.stderr, stderr.String())
		})
	}
}

func compare(t *testing.T, what, want, got string) {
	t.Helper()
	if prefix, cut := strings.CutSuffix(want, "…"); cut && strings.HasPrefix(got, prefix) {
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestProgram_Plain(t *testing.T) {
	for args, want := range map[string]int{"host-profile validate held": 1, "host-profile validate strange": 1, "host-profile validate x": 0, "nothing": 2, "": 2} {
		var stdout, stderr bytes.Buffer
		p := sample(&stdout, &stderr)
		p.Plain = true
		if got := p.Main(t.Context(), strings.Fields(args)); got != want {
			t.Errorf("%q: exit %d, want %d", args, got, want)
		}
	}
}

func TestVersion_JSON(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if exit := sample(&stdout, &stderr).Main(t.Context(), []string{"version", "--json"}); exit != 0 {
		t.Fatal(exit, stderr.String())
	}
	var got struct {
		Program string `json:"program"`
		Version string `json:"version"`
		Commit  string `json:"commit"`
		Go      string `json:"go"`
		Dirty   bool   `json:"dirty"`
		Schema  int    `json:"schema"`
	}
	if err := strictjson.Decode(stdout.Bytes(), &got, strictjson.Limits{}); err != nil {
		t.Fatal(err)
	}
	if got.Program != "sample" || got.Version == "" || !strings.HasPrefix(got.Go, "go1.") || got.Schema != 3 {
		t.Errorf("%+v", got)
	}
}

// A flag wins over the environment, the environment over the file, the file over
// the default.
func TestSettings(t *testing.T) {
	dir := t.TempDir()
	file := func(content string) string {
		path := filepath.Join(dir, fmt.Sprintf("%x.json", content)[:min(30, 2*len(content))]+".json")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	full := file(`{"store-dir":"/file","log-level":"warn","drain-timeout":"9s","item":["a","b",3,true]}`)
	for _, tc := range []struct {
		name   string
		args   []string
		env    map[string]string
		exit   int
		stdout string
		stderr string // part of it
	}{
		{"flag only", []string{"-store-dir", "/flag"}, nil, 0, "/flag info 3s \n", ""},
		{"environment", nil, map[string]string{"SAMPLE_STORE_DIR": "/env", "SAMPLE_LOG_LEVEL": "debug"}, 0, "/env debug 3s \n", ""},
		{"empty environment is unset", []string{"-store-dir", "/flag"}, map[string]string{"SAMPLE_LOG_LEVEL": ""}, 0, "/flag info 3s \n", ""},
		{"flag over environment", []string{"-store-dir", "/flag"}, map[string]string{"SAMPLE_STORE_DIR": "/env"}, 0, "/flag info 3s \n", ""},
		{"no prefix, no effect", []string{"-store-dir", "/flag"}, map[string]string{"LOG_LEVEL": "debug", "OTHER_LOG_LEVEL": "debug"}, 0, "/flag info 3s \n", ""},
		{"file", []string{"--config", full}, nil, 0, "/file warn 9s a+b+3+true\n", ""},
		{"file named by the environment", nil, map[string]string{"SAMPLE_CONFIG": full}, 0, "/file warn 9s a+b+3+true\n", ""},
		{"environment over file", []string{"--config", full}, map[string]string{"SAMPLE_STORE_DIR": "/env"}, 0, "/env warn 9s a+b+3+true\n", ""},
		{"flag over file", []string{"--config", full, "-drain-timeout=1s"}, nil, 0, "/file warn 1s a+b+3+true\n", ""},
		{"file missing", []string{"--config", "/nowhere.json"}, nil, 2, "", "no such file"},
		{"file not an object", []string{"--config", file(`[1]`)}, nil, 2, "", "not a JSON object"},
		{"duplicate key", []string{"--config", file(`{"log-level":"info","log-level":"debug"}`)}, nil, 2, "", "member twice"},
		{"unknown key", []string{"--config", file(`{"log-levle":"info"}`)}, nil, 2, "", "log-levle"},
		{"key in capitals", []string{"--config", file(`{"LOG_LEVEL":"info"}`)}, nil, 2, "", "not a setting"},
		{"key by its environment name", []string{"--config", file(`{"SAMPLE_LOG_LEVEL":"info"}`)}, nil, 2, "", "not a setting"},
		{"config in the file", []string{"--config", file(`{"config":"/x"}`)}, nil, 2, "", "not a setting"},
		{"object as value", []string{"--config", file(`{"log-level":{}}`)}, nil, 2, "", "not a text"},
		{"null as value", []string{"--config", file(`{"log-level":null}`)}, nil, 2, "", "not a text"},
		{"wrong value in the file", []string{"--config", file(`{"drain-timeout":"soon"}`)}, nil, 2, "", "drain-timeout"},
		{"wrong value in the environment", nil, map[string]string{"SAMPLE_DRAIN_TIMEOUT": "soon"}, 2, "", "SAMPLE_DRAIN_TIMEOUT"},
		{"wrong level", []string{"-log-level", "loud"}, nil, 2, "", "loud"},
		{"wrong format", []string{"-log-format", "xml"}, nil, 2, "", "xml"},
		{"drain too long", []string{"-drain-timeout", "11m"}, nil, 2, "", "between 0 and 10m"},
		{"drain negative", []string{"-drain-timeout", "-1s"}, nil, 2, "", "between 0 and"},
		{"store-dir empty", []string{"-store-dir", ""}, nil, 2, "", "-store-dir is empty"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("XDG_CONFIG_HOME", dir)
			for name, value := range tc.env {
				t.Setenv(name, value)
			}
			var stdout, stderr bytes.Buffer
			exit := sample(&stdout, &stderr).Main(t.Context(), append([]string{"serve"}, tc.args...))
			if exit != tc.exit || stdout.String() != tc.stdout || !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("exit %d, stdout %q, stderr %q, want %d, %q, … %q …", exit, stdout.String(), stderr.String(), tc.exit, tc.stdout, tc.stderr)
			}
		})
	}
}

func TestDefaultConfig(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	if got := service.DefaultConfig("sample"); got != "" {
		t.Errorf("without a file: %q", got)
	}
	if err := os.MkdirAll(filepath.Join(dir, "drawbridge"), 0o700); err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(dir, "drawbridge", "sample.json")
	if err := os.WriteFile(want, []byte(`{"store-dir":"/from-the-users-file"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := service.DefaultConfig("sample"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	var stdout, stderr bytes.Buffer
	if exit := sample(&stdout, &stderr).Main(t.Context(), []string{"serve"}); exit != 0 || !strings.HasPrefix(stdout.String(), "/from-the-users-file ") {
		t.Errorf("exit %d, %q, %q", exit, stdout.String(), stderr.String())
	}
}

// A failing command's text passes through one line, whatever it holds.
func TestExit_OneLine(t *testing.T) {
	var stderr bytes.Buffer
	if got := service.Exit(&stderr, "x", fmt.Errorf("a\n\x1b[31mb\x00")); got != 70 || stderr.String() != "x: error: a b\n" {
		t.Errorf("exit %d, %q", got, stderr.String())
	}
	if got := service.Exit(&stderr, "x", service.Status(0)); got != 0 {
		t.Errorf("status 0: exit %d", got)
	}
}

func TestDirs(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/state")
	t.Setenv("HOME", "/elsewhere")
	if got, want := service.DefaultStoreDir(), "/state/drawbridge/store"; got != want {
		t.Errorf("store directory %q, want %q", got, want)
	}
	runtime, err := service.DefaultRuntimeDir()
	if err != nil || strings.HasPrefix(runtime, "/state") || strings.HasPrefix(runtime, "/elsewhere") || !strings.HasSuffix(runtime, "/.local/state/drawbridge/run") {
		t.Errorf("runtime directory %q, %v", runtime, err)
	}
	t.Setenv("XDG_STATE_HOME", "relative")
	if got, want := service.StateRoot(), "/elsewhere/.local/state/drawbridge"; got != want {
		t.Errorf("state root %q, want %q", got, want)
	}
	t.Setenv("HOME", "")
	if got := service.StateRoot(); got+"/run" != runtime {
		t.Errorf("state root without HOME %q", got)
	}
}

func TestEnsurePrivateDir(t *testing.T) {
	base := testkit.RuntimeDir(t)
	mode := func(name string, perm os.FileMode) string {
		path := filepath.Join(base, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, perm); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(mode("target", 0o700), link); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, path string
		ok         bool
	}{
		{"new", filepath.Join(base, "a", "b", "c"), true},
		{"private", mode("private", 0o700), true},
		{"readable by others is closed", mode("readable", 0o755), true},
		{"without own write is opened", mode("narrow", 0o500), true},
		{"writable by the group", mode("group", 0o770), false},
		{"writable by all", mode("all", 0o1777), false},
		{"symlink", link, false},
		{"file", file, false},
		{"below a file", filepath.Join(file, "x"), false},
		{"relative", "x/y", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := service.EnsurePrivateDir(tc.path)
			if !tc.ok {
				if !fault.Is(err, fault.RuntimeDirUnsafe) {
					t.Errorf("err = %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for path := tc.path; path != base; path = filepath.Dir(path) {
				fi, err := os.Lstat(path)
				if err != nil || fi.Mode() != os.ModeDir|0o700 {
					t.Errorf("%s has mode %v, %v", path, fi.Mode(), err)
				}
			}
		})
	}
	if os.Geteuid() == 0 {
		other := mode("other", 0o700)
		if err := os.Chown(other, 12345, -1); err != nil {
			t.Fatal(err)
		}
		if err := service.EnsurePrivateDir(other); !fault.Is(err, fault.RuntimeDirUnsafe) {
			t.Errorf("directory of another user: %v", err)
		}
	}
}
