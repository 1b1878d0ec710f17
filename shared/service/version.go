package service

import (
	"context"
	"flag"
	"fmt"
	"io"

	"drawbridge/shared/strictjson"
	"drawbridge/shared/version"
)

// Version makes the subcommand version of a program: one line, or with -json one
// object. facts, which may be nil, adds what only the program knows (SQLite
// version, schema number).
func Version(program string, stdout io.Writer, facts func() []strictjson.Member) *Command {
	asJSON := false
	return &Command{
		Name:  "version",
		Short: "Print the version",
		Flags: func(fs *flag.FlagSet) { fs.BoolVar(&asJSON, "json", false, "print one JSON object") },
		Run: func(context.Context, []string) error {
			info := version.Get()
			if !asJSON {
				_, err := fmt.Fprintf(stdout, "%s %s\n", program, info.Version)
				return err
			}
			o := strictjson.Object{
				{Name: "program", Value: program},
				{Name: "version", Value: info.Version},
				{Name: "commit", Value: info.Commit},
				{Name: "dirty", Value: info.Dirty},
				{Name: "go", Value: info.Go},
			}
			if facts != nil {
				o = append(o, facts()...)
			}
			data, err := o.JSON()
			if err != nil {
				return err
			}
			_, err = stdout.Write(append(data, '\n'))
			return err
		},
	}
}
