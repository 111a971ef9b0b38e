package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// parse parses the command line and adds all errors in it. A flag with an invalid value keeps its
// previous one, so that validation reports no second error.
func (o *options) parse(args []string) {
	args = joinAddressTypes(args)
	o.addUnknownFlags(args)
	set := func(flag *pflag.Flag, value string) error {
		before := flag.Value.String()
		if err := o.all.Set(flag.Name, value); err != nil {
			o.errs = append(o.errs, err)
			o.unparsed = append(o.unparsed, flag.Name)
			if _, list := flag.Value.(pflag.SliceValue); !list { // lists are unchanged, and Set would append
				_ = flag.Value.Set(before)
			}
		}
		return nil // continue, to find the other errors too
	}
	o.all.ParseErrorsAllowlist.UnknownFlags = true // addUnknownFlags has reported them
	if err := o.all.ParseAll(args, set); err != nil {
		o.errorf("%w; see --help", err)
	}
	for _, arg := range o.all.Args() {
		o.errorf("unexpected argument %q; see --help", arg)
	}
}

// joinAddressTypes joins the types of addresses with the arguments that follow them and are no flags: helm splits --set
// args={--kubelet-preferred-address-types=A,B} at the comma, and metrics-server ignores B. Other lists have values of
// any text, so what follows them is an error.
func joinAddressTypes(args []string) (joined []string) {
	isJoined := false
	for _, arg := range args {
		if isJoined && arg != "" && !strings.HasPrefix(arg, "-") {
			joined[len(joined)-1] += "," + arg
			continue
		}
		isJoined = strings.HasPrefix(arg, "--kubelet-preferred-address-types=")
		joined = append(joined, arg)
	}
	return joined
}

// removedLogFlags are flags that old command lines of metrics-server have. Its new versions reject them, too.
var removedLogFlags = []string{"logtostderr", "alsologtostderr", "stderrthreshold"}

// addUnknownFlags adds an error for each unknown flag in args. pflag stops at the first one, so
// addUnknownFlags removes it and parses the rest again, until only known flags remain.
func (o *options) addUnknownFlags(args []string) {
	args = slices.Clone(args)
	ignore := func(*pflag.Flag, string) error { return nil }
	for {
		unknown, ok := errors.AsType[*pflag.NotExistError](o.all.ParseAll(args, ignore))
		if !ok {
			return
		}
		i := slices.IndexFunc(args, func(arg string) bool { return contains(arg, unknown) })
		cure := "see --help"
		if slices.Contains(removedLogFlags, unknown.GetSpecifiedName()) {
			cure = "remove it: the log is written to stderr"
		}
		o.errorf("%w; %s", unknown, cure)
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
