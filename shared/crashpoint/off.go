//go:build !drawbridge_crashpoints

package crashpoint

// At marks a step. This build ignores it.
func At(string) {}
