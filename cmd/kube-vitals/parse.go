package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// maxTypos is the largest number of wrong characters in a name for which another one is suggested.
const maxTypos = 2

// parse parses the command line and returns all errors in it. A flag with an invalid value keeps
// its previous one, so that validation reports no second error.
func (o *options) parse(args []string) error {
	mistakes := o.unknownFlags(args)
	set := func(flag *pflag.Flag, value string) error {
		before := flag.Value.String()
		if err := o.all.Set(flag.Name, value); err != nil {
			mistakes = append(mistakes, err)
			o.unparsed = append(o.unparsed, flag.Name)
			if _, list := flag.Value.(pflag.SliceValue); !list { // lists are unchanged, and Set would append
				_ = flag.Value.Set(before)
			}
		}
		return nil // continue, to find the other mistakes too
	}
	o.all.ParseErrorsAllowlist.UnknownFlags = true // unknownFlags has reported them
	if err := o.all.ParseAll(args, set); err != nil {
		mistakes = append(mistakes, fmt.Errorf("%w; see --help", err))
	}
	for _, arg := range o.all.Args() {
		mistakes = append(mistakes, fmt.Errorf("unexpected argument %q%s", arg, o.suggest(arg)))
	}
	return errors.Join(mistakes...)
}

// unknownFlags returns an error for each unknown flag in args. pflag stops at the first one, so
// unknownFlags removes it and parses the rest again, until only known flags remain.
func (o *options) unknownFlags(args []string) []error {
	var mistakes []error
	args = slices.Clone(args)
	ignore := func(*pflag.Flag, string) error { return nil }
	for {
		var unknown *pflag.NotExistError
		if err := o.all.ParseAll(args, ignore); !errors.As(err, &unknown) {
			return mistakes
		}
		i := slices.IndexFunc(args, func(arg string) bool { return contains(arg, unknown) })
		if i < 0 {
			return append(mistakes, unknown)
		}
		name, _, _ := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		mistakes = append(mistakes, fmt.Errorf("%w%s", unknown, o.suggest(name)))
		args = slices.Delete(args, i, i+1)
	}
}

// contains reports whether arg contains the unknown flag.
func contains(arg string, unknown *pflag.NotExistError) bool {
	if group := unknown.GetSpecifiedShortnames(); group != "" {
		return strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--") && strings.HasSuffix(arg, group)
	}
	name, _, _ := strings.Cut(arg, "=")
	return name == "--"+unknown.GetSpecifiedName()
}

// suggest returns the end of an error about an unknown name: the most similar flag, or a pointer to
// --help.
func (o *options) suggest(name string) string {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	best, distance := "", min(maxTypos, len(name)/2)+1
	o.all.VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden {
			return
		}
		if d := editDistance(name, flag.Name); d < distance {
			best, distance = flag.Name, d
		}
	})
	if best == "" {
		return "; see --help"
	}
	return fmt.Sprintf("; did you mean --%s?", best)
}

// editDistance returns the smallest number of bytes to insert, delete or replace that turns a into
// b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1) // the distances of a prefix of a to each prefix of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
