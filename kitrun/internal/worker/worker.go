// Package worker runs one Codex turn in a locked-down container.
package worker

import (
	_ "github.com/docker/docker/client"
	_ "github.com/docker/docker/pkg/stdcopy"
	_ "github.com/google/uuid"
)
