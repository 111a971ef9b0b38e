// Command flaky is a bad network in front of a Go module proxy: one response in 30 breaks in the middle,
// and one in 100 never ends. It prints its URL, and at the end what it has done. test/fresh.sh uses it.
//
//	flaky SEED GOPROXY
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/flaky"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

func main() {
	program.Main("flaky", func(ctx context.Context, args []string) error {
		const arguments = 2
		if len(args) != arguments {
			return errors.New("usage: flaky SEED GOPROXY")
		}
		seed, err := strconv.ParseUint(args[0], 10, 64)
		if err != nil {
			return fmt.Errorf("parse the seed: %w", err)
		}
		proxy, _, _ := strings.Cut(strings.ReplaceAll(args[1], "|", ","), ",") // the first of a list
		target, err := url.Parse(proxy)
		if err != nil || target.Host == "" {
			return fmt.Errorf("GOPROXY must start with the URL of a module proxy: got %q", args[1])
		}
		p := flaky.New(target)
		p.Seed, p.BreakOne, p.HangOne = seed, 30, 100
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		server := &http.Server{Handler: p, ReadHeaderTimeout: time.Minute}
		go func() {
			<-ctx.Done()
			_ = server.Close()
		}()
		fmt.Printf("http://%s\n", listener.Addr())
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		fmt.Fprintf(os.Stderr, "flaky proxy: %d requests, %d broken, %d hung\n",
			p.Requests.Load(), p.Broken.Load(), p.Hung.Load())
		return nil
	})
}
