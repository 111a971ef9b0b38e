package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// TestVerboseLogsKeepSecrets checks that the logs of client-go contain no token and no private key
// at any level.
func TestVerboseLogsKeepSecrets(t *testing.T) {
	const own, clients, key = "OWNTOKEN", "CLIENTSTOKEN", "PRIVATEKEY"
	const kubelets = "KUBELETSTOKEN"
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/token") {
			json.NewEncoder(w).Encode(authenticationv1.TokenRequest{
				TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
				Status:   authenticationv1.TokenRequestStatus{Token: kubelets},
			})
			return
		}
		if strings.Contains(r.URL.Path, "secrets") {
			json.NewEncoder(w).Encode(corev1.Secret{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, StringData: map[string]string{"tls.key": key},
			})
			return
		}
		json.NewEncoder(w).Encode(authenticationv1.TokenReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"},
			Spec:     authenticationv1.TokenReviewSpec{Token: clients},
		})
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
			review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: clients}}
			_, err = client.AuthenticationV1().TokenReviews().Create(t.Context(), review, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.CoreV1().Secrets("a").Get(t.Context(), "serving", metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			_, err = client.CoreV1().ServiceAccounts("a").CreateToken(t.Context(), "b", &authenticationv1.TokenRequest{},
				metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			text := log.String()
			for _, secret := range []string{own, clients, key, kubelets, "Body"} {
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
