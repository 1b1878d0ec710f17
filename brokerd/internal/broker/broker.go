// Package broker lends a provider credential as capabilities.
package broker

import (
	_ "golang.org/x/sys/unix"

	_ "drawbridge/shared/store"
)
