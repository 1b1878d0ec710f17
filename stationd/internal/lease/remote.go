package lease

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"regexp"
	"strconv"
	"syscall"

	"golang.org/x/crypto/ssh"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
	"drawbridge/stationd/internal/adminfile"
)

const (
	maxProviders     = 256 << 10 // bytes of the file
	maxRemotes       = 64
	defaultPort      = 22
	maxDir           = 56 // so that paths of sockets below it are short enough
	remoteNameLength = 64
	maxKeyFile       = 64 << 10
)

// Remote is one machine of the providers file.
type Remote struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"` // ssh
	Host    string `json:"host"` // a name or an address
	Port    int    `json:"port"` // 0: 22
	User    string `json:"user"`
	HostKey string `json:"hostKey"` // as in the host's own .pub file; nothing else is trusted
	KeyFile string `json:"keyFile"` // a private key without a passphrase; or
	Agent   string `json:"agent"`   // the socket of an agent
	Dir     string `json:"dir"`     // there, for leases; it belongs to User alone
}

var (
	remoteNames = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)
	remoteUsers = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_.-]{0,63}$`)
	remoteHosts = regexp.MustCompile(`^[a-zA-Z0-9:][a-zA-Z0-9.:_-]{0,252}$`)
	remoteDirs  = regexp.MustCompile(`^(/[a-zA-Z0-9._-]+)+$`) // it stands in commands of a shell
)

// LoadRemotes reads a providers file: {"providers":[…]}. It is an administrator's:
// whoever else could change it could send workspaces elsewhere.
func LoadRemotes(file string) ([]Remote, error) {
	data, err := adminfile.Read(file, maxProviders)
	if err != nil {
		return nil, invalid("read the providers file: %w", err)
	}
	return ParseRemotes(data)
}

// ParseRemotes reads a providers file strictly.
func ParseRemotes(data []byte) ([]Remote, error) {
	var file struct {
		Providers []Remote `json:"providers"`
	}
	if err := strictjson.Decode(data, &file, strictjson.Limits{MaxBytes: maxProviders}); err != nil {
		return nil, invalid("read the providers file: %w", err)
	}
	if len(file.Providers) > maxRemotes {
		return nil, invalid("read the providers file: more than %d providers", maxRemotes)
	}
	seen := map[string]bool{KindLocal: true}
	for i, r := range file.Providers {
		if err := r.check(); err != nil {
			return nil, invalid("providers[%d]: %w", i, err)
		}
		if seen[r.Name] {
			return nil, invalid("providers[%d]: name: %q is taken", i, r.Name)
		}
		seen[r.Name] = true
		if r.Port == 0 {
			file.Providers[i].Port = defaultPort
		}
	}
	return file.Providers, nil
}

func invalid(format string, args ...any) *fault.Error {
	return fault.New(fault.ProvidersInvalid, format, args...).
		WithHint(`each provider is {"name","kind":"ssh","host","port","user","hostKey","keyFile" or "agent","dir"}`)
}

func (r Remote) check() error {
	_, keyErr := r.hostKey()
	switch {
	case !remoteNames.MatchString(r.Name) || len(r.Name) > remoteNameLength:
		return fmt.Errorf("name: want lower-case letters, digits, - and _")
	case r.Kind != KindSSH:
		return fmt.Errorf("kind: want ssh, the one kind that a file adds")
	case !remoteHosts.MatchString(r.Host):
		return fmt.Errorf("host: want a name or an address")
	case r.Port < 0 || r.Port > 65535:
		return fmt.Errorf("port: want 1 to 65535, or 0 for 22")
	case !remoteUsers.MatchString(r.User):
		return fmt.Errorf("user: want the name of a user")
	case keyErr != nil:
		return fmt.Errorf("hostKey: %w", keyErr)
	case (r.KeyFile == "") == (r.Agent == ""):
		return fmt.Errorf("want exactly one of keyFile and agent")
	case r.KeyFile != "" && !path.IsAbs(r.KeyFile), r.Agent != "" && !path.IsAbs(r.Agent):
		return fmt.Errorf("keyFile, agent: want an absolute path")
	case !remoteDirs.MatchString(r.Dir) || path.Clean(r.Dir) != r.Dir || len(r.Dir) > maxDir:
		return fmt.Errorf("dir: want an absolute path of plain characters, at most %d", maxDir)
	}
	return nil
}

// hostKey is the key that is pinned.
func (r Remote) hostKey() (ssh.PublicKey, error) {
	key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(r.HostKey))
	if err != nil || len(options) > 0 || len(rest) > 0 {
		return nil, fmt.Errorf("want one line as in the host's /etc/ssh/ssh_host_ed25519_key.pub, without a host name before it")
	}
	return key, nil
}

// keyHint says what a key file has to be.
const keyHint = "it is a private key of stationd's own, without a passphrase and with mode 0600; or use an agent"

// Usable looks at what this side brings to a machine, its key or the socket of its
// agent, as a connection would. Nothing is dialled.
func (r Remote) Usable() error {
	if r.Agent != "" {
		if st, err := os.Stat(r.Agent); err != nil || st.Mode().Type() != os.ModeSocket {
			return fault.New(fault.ProvidersInvalid, "use the provider %s: there is no socket of an agent at %s", r.Name, r.Agent).
				WithHint("start the agent, or name its socket in the providers file")
		}
		return nil
	}
	if _, err := r.signer(); err != nil {
		return fault.New(fault.ProvidersInvalid, "use the provider %s: %w", r.Name, err).WithHint(keyHint)
	}
	return nil
}

// signer reads the key file. What is wrong with it is said without its path.
func (r Remote) signer() (ssh.Signer, error) {
	f, err := os.OpenFile(r.KeyFile, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.New("the key file cannot be opened")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, errors.New("the key file is no file of its owner alone (mode 0600)")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return nil, errors.New("the key file cannot be read")
	}
	signer, err := ssh.ParsePrivateKey(data)
	clear(data)
	if _, locked := errors.AsType[*ssh.PassphraseMissingError](err); locked {
		return nil, errors.New("the key file has a passphrase")
	}
	if err != nil {
		return nil, errors.New("the key file holds no private key")
	}
	return signer, nil
}

// keyAlgorithms are what the host may prove its key with.
func keyAlgorithms(key ssh.PublicKey) []string {
	if key.Type() == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{key.Type()}
}

// address is where the machine answers, and ref how leases name it.
func (r Remote) address() string { return net.JoinHostPort(r.Host, strconv.Itoa(r.Port)) }
func (r Remote) ref() string     { return r.User + "@" + r.address() }
