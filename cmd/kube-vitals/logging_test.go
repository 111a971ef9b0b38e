package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// TestVerboseLogsKeepSecrets checks that the logs of client-go contain no token and no private key
// at any level.
func TestVerboseLogsKeepSecrets(t *testing.T) {
	const own, sent, received = "OWNTOKEN", "CLIENTSTOKEN", "PRIVATEKEY"
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"kind": "Secret", "data": %q}`, received)
	}))
	defer api.Close()
	for _, args := range [][]string{
		{"-v=8"}, {"-v=9"}, {"-v=10"}, {"-v=2147483647"},
		{"--vmodule=*=10"}, {"--vmodule=req*=10,round_trippers=9"}, {"-v=6", "--vmodule=request=8"},
		{"-v=10", "--logging-format=json"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			o := parsed(t, args...)
			if o.config(); o.errs != nil {
				t.Fatal(o.errs)
			}
			var log bytes.Buffer
			output := &logsapi.LoggingOptions{ErrorStream: &log, InfoStream: &log}
			if err := logsapi.ValidateAndApplyWithOptions(o.logging, output, nil); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := logsapi.ResetForTest(nil); err != nil {
					t.Error(err)
				}
			}()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, BearerToken: own})
			if err != nil {
				t.Fatal(err)
			}
			body := fmt.Appendf(nil, `{"kind": "TokenReview", "spec": {"token": %q}}`, sent)
			request := client.CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces/a/secrets/serving").Body(body)
			if _, err := request.DoRaw(t.Context()); err != nil {
				t.Fatal(err)
			}
			text := log.String()
			for _, secret := range []string{own, sent, received, "Body"} {
				if strings.Contains(text, secret) {
					t.Errorf("got %s in the log:\n%s", secret, text)
				}
			}
			if args[0] == "-v=10" && !strings.Contains(text, "/namespaces/a/secrets/serving") {
				t.Errorf("the request is not in the log:\n%s", text)
			}
		})
	}
}
