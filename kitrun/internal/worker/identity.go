package worker

import (
	"context"
	"os"
	"strconv"
)

// Identity is as whom containers of an engine run that are asked for nothing else.
type Identity struct {
	Args            []string `json:"args"` // of a docker command line
	UID             int      `json:"uid"`  // of this process
	GID             int      `json:"gid"`
	Native          bool     `json:"native"` // false: the engine maps the ids itself, unverified
	SecurityOptions []string `json:"daemon_security_options"`
}

// IdentityOf asks an engine; it fails with docker_identity_unqualified where ids
// are mapped (worker §4.1).
func IdentityOf(ctx context.Context, e Engine) (Identity, error) {
	info, err := Ask(ctx, e)
	if err != nil {
		return Identity{}, err
	}
	id, err := qualify(info)
	if err != nil {
		return Identity{}, err
	}
	out := Identity{Args: []string{}, UID: os.Geteuid(), GID: os.Getegid(), Native: id.native, SecurityOptions: id.security}
	if id.native {
		out.Args = []string{"--user", strconv.Itoa(out.UID) + ":" + strconv.Itoa(out.GID)}
	}
	return out, nil
}
