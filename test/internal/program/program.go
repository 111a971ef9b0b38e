// Package program has what the programs of this module share.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Main runs a program with its arguments until it returns or is interrupted. It exits with status 1
// if there was an error, and prints that.
func Main(name string, run func(ctx context.Context, args []string) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		}
		stop()
		os.Exit(1)
	}
}

// Flags returns a set of flags, empty at first, for a program that runs a server. The arguments that follow
// them are flags of the server.
func Flags(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "usage: %s -server=EXECUTABLE [flags] [-- flags of the server]\n\n", name)
		flags.PrintDefaults()
	}
	return flags
}

var started = time.Now()

// Logf prints a line of progress with the seconds since the start of the program.
func Logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%4.0fs  %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, args...))
}

// Sleep returns the cause of the context if that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
