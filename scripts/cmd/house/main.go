// Command house checks the rules that no compiler knows (package house), and
// with -write writes the generated pages docs/errors.md and docs/proofs.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"drawbridge/scripts/internal/house"
	"drawbridge/scripts/internal/rig"
)

func main() {
	write := flag.Bool("write", false, "write "+house.ErrorsPage+" and "+house.ProofsPage)
	flag.Parse()
	if err := run(*write); err != nil {
		fmt.Fprintf(os.Stderr, "house: error: %v\n", err)
		os.Exit(1)
	}
}

func run(write bool) error {
	root, err := rig.Root()
	if err != nil {
		return err
	}
	if write {
		return house.Write(context.Background(), root)
	}
	findings, err := house.Check(context.Background(), root)
	if err != nil {
		return err
	}
	for _, f := range findings {
		fmt.Println(f)
	}
	if len(findings) > 0 {
		return fmt.Errorf("%d findings", len(findings))
	}
	return nil
}
