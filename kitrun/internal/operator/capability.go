package operator

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/strictjson"
)

// maxCapabilityFile bounds the file of --capability-file.
const maxCapabilityFile = 64 << 10

var capabilityForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// readCapability reads a capability that somebody else took out: its 64 hex digits,
// or the JSON that `brokerd grant` prints, which also says where the broker is. The
// file is checked as brokerd checks a credential file, and no error shows any of it.
func readCapability(path string) (worker.ProviderProxy, error) {
	data, err := readPrivate(path)
	if err != nil {
		return worker.ProviderProxy{}, err
	}
	defer clear(data)
	text := strings.TrimSpace(string(data))
	if !strings.HasPrefix(text, "{") {
		if !capabilityForm.MatchString(text) {
			return worker.ProviderProxy{}, badCapability()
		}
		return worker.ProviderProxy{Capability: redact.NewSecret(text)}, nil
	}
	var grant struct {
		BaseURL    string `json:"base_url"`
		Capability string `json:"capability"`
		Model      string `json:"model"`
	}
	if err := strictjson.Decode([]byte(text), &grant, strictjson.Limits{MaxBytes: maxCapabilityFile, AllowUnknown: true}); err != nil ||
		!capabilityForm.MatchString(grant.Capability) {
		return worker.ProviderProxy{}, badCapability()
	}
	return worker.ProviderProxy{BaseURL: grant.BaseURL, Capability: redact.NewSecret(grant.Capability), Model: grant.Model}, nil
}

func badCapability() error {
	return fault.New(fault.CredentialUnavailable, "read the capability file: it holds neither 64 lower hex digits nor what brokerd grant prints")
}

// readPrivate reads a file of this user that nobody else can read. All checks are
// made on one descriptor.
func readPrivate(path string) ([]byte, error) {
	refuse := func(why string) ([]byte, error) {
		return nil, fault.New(fault.CredentialPermissions, "read the capability file: %s", why).
			WithHint("it must be a regular file of this user with mode 0600")
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP):
		return refuse("it is a symbolic link")
	case errors.Is(err, unix.ENXIO):
		return refuse("it is no regular file")
	case err != nil:
		return nil, fault.New(fault.CredentialUnavailable, "read the capability file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "capability")
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fault.New(fault.CredentialUnavailable, "read the capability file: %w", err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return refuse("it is no regular file")
	case int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return refuse("it belongs to another user")
	case st.Mode&0o077 != 0:
		return refuse("its mode lets others in")
	case st.Size > maxCapabilityFile:
		return refuse(fmt.Sprintf("it is larger than %d bytes", maxCapabilityFile))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxCapabilityFile))
	if err != nil {
		return nil, fault.New(fault.CredentialUnavailable, "read the capability file: it cannot be read")
	}
	return data, nil
}
