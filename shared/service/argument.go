package service

import (
	"errors"
	"flag"
	"slices"
)

// Argument defines a text flag that decides whom a program trusts: it is taken
// from the command line alone, at most once, never from the environment or a
// configuration file (host-profile §10).
func Argument(fs *flag.FlagSet, value *string, name, usage string) {
	fs.Var(argument{fs, value}, name, usage)
}

type argument struct {
	fs    *flag.FlagSet
	value *string
}

func (a argument) String() string {
	if a.value == nil {
		return ""
	}
	return *a.value
}

// Set knows the command line by what is left of it: flagsFirst ends the flags
// with "--", which is gone once all of them are taken.
func (a argument) Set(s string) error {
	if !slices.Contains(a.fs.Args(), "--") {
		return errors.New("is taken from the command line only")
	}
	if *a.value != "" {
		return errors.New("is given twice")
	}
	*a.value = s
	return nil
}
