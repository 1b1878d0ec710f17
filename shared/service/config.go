package service

import (
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/peterbourgon/ff/v3"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// maxConfig bounds a configuration file.
const maxConfig = 1 << 20

// maxDrain bounds -drain-timeout.
const maxDrain = 10 * time.Minute

// settingName is the form of a flag's name, which is also its key in a file.
var settingName = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)

// Common are the settings that every serving program has, under the same names.
type Common struct {
	StoreDir   string        // -store-dir
	RuntimeDir string        // -runtime-dir
	LogLevel   string        // -log-level
	LogFormat  string        // -log-format
	Config     string        // -config
	Drain      time.Duration // -drain-timeout
}

// Register defines the flags with their defaults. drain is the program's own
// default for -drain-timeout.
func (c *Common) Register(fs *flag.FlagSet, drain time.Duration) {
	program, _, _ := strings.Cut(fs.Name(), " ")
	runtime, _ := DefaultRuntimeDir() // reported by Check when no flag is given
	fs.StringVar(&c.StoreDir, "store-dir", DefaultStoreDir(), "`directory` of the Store")
	fs.StringVar(&c.RuntimeDir, "runtime-dir", runtime, "`directory` of locks and sockets")
	fs.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&c.LogFormat, "log-format", "auto", "auto (text on a terminal, else json), text or json")
	fs.DurationVar(&c.Drain, "drain-timeout", drain, "how long a stop may take")
	fs.StringVar(&c.Config, "config", DefaultConfig(program), "JSON `file` with settings")
}

// Check validates the settings and makes the directories absolute. It touches
// nothing on disk.
func (c *Common) Check() error {
	for _, dir := range []struct {
		flag string
		path *string
	}{{"store-dir", &c.StoreDir}, {"runtime-dir", &c.RuntimeDir}} {
		abs, err := absolute(dir.flag, *dir.path)
		if err != nil {
			return err
		}
		*dir.path = abs
	}
	if _, err := parseLevel(c.LogLevel); err != nil {
		return err
	}
	switch c.LogFormat {
	case "auto", "text", "json":
	default:
		return usageError("-log-format is %q, not auto, text or json", c.LogFormat)
	}
	if c.Drain < 0 || c.Drain > maxDrain {
		return usageError("-drain-timeout is %v, not between 0 and %v", c.Drain, maxDrain)
	}
	return nil
}

// absolute makes the directory of a flag absolute.
func absolute(flag, path string) (string, error) {
	if path == "" {
		return "", usageError("-%s is empty and has no default: this user has no home directory", flag)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", usageError("-%s: %w", flag, err)
	}
	return abs, nil
}

// StoreFlags are the settings of a command that works on a Store and serves nobody.
type StoreFlags struct {
	Dir    string // -store-dir, as given
	Config string // -config
}

// Register defines the flags.
func (f *StoreFlags) Register(fs *flag.FlagSet) {
	program, _, _ := strings.Cut(fs.Name(), " ")
	fs.StringVar(&f.Dir, "store-dir", DefaultStoreDir(), "`directory` of the Store")
	fs.StringVar(&f.Config, "config", DefaultConfig(program), "JSON `file` with settings")
}

// Path is the Store's directory, absolute.
func (f *StoreFlags) Path() (string, error) { return absolute("store-dir", f.Dir) }

func parseLevel(name string) (slog.Level, error) {
	switch name {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, usageError("-log-level is %q, not debug, info, warn or error", name)
}

// DefaultConfig gives the program's configuration file of this user, when there
// is one: $XDG_CONFIG_HOME/drawbridge/<program>.json, else below ~/.config.
func DefaultConfig(program string) string {
	base := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(base) {
		home := homeDir()
		if home == "" {
			return ""
		}
		base = filepath.Join(home, ".config")
	}
	path := filepath.Join(base, "drawbridge", program+".json")
	if _, err := os.Lstat(path); err != nil {
		return ""
	}
	return path
}

// parseConfig reads a configuration file for ff: one strict JSON object of flag
// names with a text, number or boolean each, or an array of those for a flag
// that may be repeated.
func parseConfig(r io.Reader, set func(name, value string) error) error {
	data, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
	if err != nil {
		return usageError("read configuration file: %w", err)
	}
	tree, err := strictjson.Parse(data, strictjson.Limits{MaxBytes: maxConfig})
	if err != nil {
		return usageError("configuration file: %w", err)
	}
	settings, ok := tree.(map[string]any)
	if !ok {
		return usageError("configuration file: not a JSON object")
	}
	for name, value := range settings {
		if !settingName.MatchString(name) || name == "config" {
			return usageError("configuration file: %q is not a setting", fault.CleanLine(name))
		}
		values, many := value.([]any)
		if !many {
			values = []any{value}
		}
		for _, v := range values {
			text, ok := scalar(v)
			if !ok {
				return usageError("configuration file: %q is not a text, number or boolean", name)
			}
			if err := set(name, text); err != nil {
				return usageError("configuration file: %w", err)
			}
		}
	}
	return nil
}

// parseConfig is parseConfig for one command.
func (c *Command) parseConfig(fs *flag.FlagSet) ff.ConfigFileParser {
	return func(r io.Reader, set func(name, value string) error) error {
		err := parseConfig(r, func(name, value string) error {
			if c.OtherSettings && fs.Lookup(name) == nil {
				return nil
			}
			return set(name, value)
		})
		if err != nil {
			return usageError("%s: %w", fs.Lookup("config").Value, err)
		}
		return nil
	}
}

func scalar(v any) (text string, ok bool) {
	switch x := v.(type) {
	case string:
		return x, true
	case strictjson.Number:
		return string(x), true
	case bool:
		if x {
			return "true", true
		}
		return "false", true
	}
	return "", false
}
