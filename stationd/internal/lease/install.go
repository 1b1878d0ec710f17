package lease

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/crypto/ssh"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/place"
)

// digestLength is how much of its digest the shim's name there has.
const digestLength = 16

// install makes sure that this stationd's shim is on the machine, and gives its path
// there. It is the only program that is copied, and what is there is compared by its
// digest each time. The shell, cat and sha256sum are needed for that, and for
// nothing else.
func (l *link) install(ctx context.Context, client *ssh.Client) (string, error) {
	sum, err := place.FileSHA256(l.shim)
	if err != nil {
		return "", fault.New(fault.ShimUnavailable, "copy the shim: %w", err)
	}
	dir := path.Join(l.remote.Dir, "bin")
	file := path.Join(dir, "station-shim-"+sum[:digestLength])
	same := func(command string, in io.Reader) (bool, error) {
		out, err := l.execute(ctx, client, shell(command), in)
		return strings.HasPrefix(string(out), sum+" "), err
	}
	ok, err := same("test ! -x "+file+" || sha256sum < "+file, nil)
	if ok || err != nil {
		return file, err
	}
	f, err := os.Open(l.shim)
	if err != nil {
		return "", fault.New(fault.ShimUnavailable, "copy the shim: %w", err)
	}
	defer f.Close()
	random := make([]byte, 8)
	_, _ = rand.Read(random)
	fresh := file + "." + hex.EncodeToString(random)
	if ok, err = same(fmt.Sprintf("umask 077 && mkdir -p %s && cat > %s && chmod 500 %s && mv -f %s %s && sha256sum < %s", dir, fresh, fresh, fresh, file, file), f); err != nil {
		return "", err
	}
	if !ok {
		_, _ = l.execute(ctx, client, shell("rm -f "+file), nil)
		return "", fault.New(fault.IntegrityFailed, "copy the shim to the provider %s: what arrived is not what was sent", l.remote.Name)
	}
	return file, nil
}

// shell is a command for whatever shell the user has there. Nothing in it needs
// quotes: names are checked when the providers file is read.
func shell(command string) string { return "sh -c '" + command + "'" }
