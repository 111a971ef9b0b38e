package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// asked is an API server that is asked one question. It counts how often, and answers "yes", "no" or nothing.
type asked struct {
	*reviews[string]
	answers string // "": it fails; "hang": it does not answer
	times   int
	log     ktesting.Underlier
	ctx     context.Context
}

func newAsked(t *testing.T) *asked {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	return &asked{
		log: logger.GetSink().(ktesting.Underlier),
		ctx: klog.NewContext(t.Context(), logger),
		reviews: newReviews(10*time.Second, wait.Backoff{Steps: 1}, new(outage),
			func(answer string) time.Duration {
				if answer == "yes" {
					return time.Minute
				}
				return 5 * time.Second
			},
			func(answer string) bool { return answer == "yes" }),
	}
}

// ask gives the answer, or the error in its place.
func (a *asked) ask() string {
	answer, err := a.answer(a.ctx, "question", func(ctx context.Context) (string, error) {
		a.times++
		switch a.answers {
		case "reject":
			return "", apierrors.NewInvalid(schema.GroupKind{Kind: "SubjectAccessReview"}, "", nil)
		case "":
			return "", errors.New("connection refused")
		case "hang":
			<-ctx.Done()
			return "", ctx.Err()
		}
		return a.answers, nil
	})
	if err != nil {
		return err.Error()
	}
	return answer
}

// lines counts the lines of the log that have the text.
func (a *asked) lines(text string) int { return strings.Count(a.log.GetBuffer().String(), text) }

func TestAnswersAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsked(t)
		for _, step := range []struct {
			after   time.Duration
			answers string
			want    string
			times   int // asked so far
		}{
			{0, "no", "no", 1},
			{4 * time.Second, "yes", "no", 1}, // as long as a no is fresh
			{2 * time.Second, "yes", "yes", 2},
			{59 * time.Second, "no", "yes", 2}, // as long as a yes is fresh
			{2 * time.Second, "yes", "yes", 3},
			{2 * time.Minute, "", "yes", 4},               // an old yes while there is nobody to ask
			{patience / 2, "", "yes", 4},                  // who is not asked again at once
			{patience, "", "yes", 5},                      // but soon
			{time.Minute, "no", "no", 6},                  // what is said next counts
			{10 * time.Second, "", errUnasked.Error(), 7}, // and an old no lets nobody in
			{time.Second, "yes", "yes", 8},
			{grace - time.Second, "", "yes", 9},
			{2 * time.Second, "", errUnasked.Error(), 10}, // nor does a yes that is too old
			{time.Second, "yes", "yes", 11},
		} {
			time.Sleep(step.after)
			a.answers = step.answers
			if got := a.ask(); got != step.want || a.times != step.times {
				t.Fatalf("%+v: %q, asked %d times", step, got, a.times)
			}
		}
	})
}

// An API server that accepts requests and does not answer holds up nobody for long whom it has let in before.
func TestAnAPIServerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsked(t)
		took := func() time.Duration {
			start := time.Now()
			a.ask()
			return time.Since(start)
		}
		a.answers = "hang"
		if first, next := took(), took(); first != 10*time.Second || next != patience {
			t.Errorf("clients that nobody knows wait %v, then %v", first, next)
		}
		a.answers = "yes"
		took()
		time.Sleep(time.Minute)
		a.answers = "hang"
		if d := took(); d != patience {
			t.Errorf("one that was let in waits %v", d)
		}
		if d := took(); d != 0 {
			t.Errorf("and then %v", d)
		}
	})
}

func TestAnOutageIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsked(t)
		const fails, works = "cannot be asked who clients are", "can be asked again"
		for range 1000 { // 100 s
			a.ask()
			time.Sleep(100 * time.Millisecond)
		}
		if a.lines(fails) != 2 || a.lines("unanswered=601") != 1 || a.lines(works) != 0 {
			t.Errorf("while it lasts:\n%s", a.log.GetBuffer())
		}
		a.answers = "no"
		a.ask()
		if a.lines(works) != 1 || a.lines(`after="1m40s" unanswered=1000`) != 1 {
			t.Errorf("when it is over:\n%s", a.log.GetBuffer())
		}
		for range 100 { // every second question fails
			time.Sleep(6 * time.Second)
			a.answers = ""
			a.ask()
			a.answers = "no"
			a.ask()
		}
		if n := a.lines("\n"); n > 3+2*11 {
			t.Errorf("%d lines in the 10 minutes of an API server that comes and goes", n)
		}
	})
}

// A client cannot make an outage by asking what makes no sense, and so keep rights that it has no more.
func TestARejectedQuestionIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsked(t)
		a.answers = "yes"
		a.ask()
		time.Sleep(2 * time.Minute)
		a.answers = "reject"
		if got := a.ask(); got != errRejected.Error() || a.lines("\n") != 0 {
			t.Errorf("%s:\n%s", got, a.log.GetBuffer())
		}
	})
	for err, want := range map[error]bool{
		apierrors.NewRequestEntityTooLargeError("long"):         true,
		apierrors.NewBadRequest("nonsense"):                     true,
		apierrors.NewUnauthorized("who are you"):                false,
		apierrors.NewForbidden(schema.GroupResource{}, "", nil): false,
		apierrors.NewTooManyRequests("busy", 1):                 false,
		apierrors.NewInternalError(errors.New("etcd is away")):  false,
		apierrors.NewTimeoutError("slow", 1):                    false,
		errors.New("connection refused"):                        false,
	} {
		if got := rejected(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// An outage whose end nobody has seen, since nobody asked, is not told of as if it had gone on.
func TestTwoOutages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsked(t)
		a.ask()
		time.Sleep(time.Hour)
		a.ask()
		if text := a.log.GetBuffer().String(); strings.Count(text, `for="0s" unanswered=1 `) != 2 {
			t.Errorf("the log:\n%s", text)
		}
	})
}

func TestAClientThatDoesNotWaitIsNoOutage(t *testing.T) {
	a := newAsked(t)
	ctx, cancel := context.WithCancel(a.ctx)
	cancel()
	a.ctx, a.answers = ctx, "hang"
	if got := a.ask(); got != context.Canceled.Error() || a.lines("\n") != 0 {
		t.Errorf("%s:\n%s", got, a.log.GetBuffer())
	}
}

func TestAccessReviews(t *testing.T) {
	client := fake.NewClientset()
	var asked []authorizationv1.SubjectAccessReviewSpec
	var status authorizationv1.SubjectAccessReviewStatus
	var failure error
	client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		asked = append(asked, review.Spec)
		return true, &authorizationv1.SubjectAccessReview{Status: status}, failure
	})
	o := genericoptions.NewDelegatingAuthorizationOptions()
	authorize := accessReviews(Config{Authorization: o}, client, new(outage))
	list := authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "alice", UID: "1", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}},
		Verb: "list", Namespace: "a", APIGroup: "metrics.k8s.io", APIVersion: "v1", Resource: "pods", ResourceRequest: true,
	}
	telemetry := authorizer.AttributesRecord{User: list.User, Verb: "get", Path: "/metrics"}
	for _, step := range []struct {
		name    string
		request authorizer.AttributesRecord
		status  authorizationv1.SubjectAccessReviewStatus
		failure error
		want    authorizer.Decision
		reason  string
		asked   int // in all
	}{
		{"allowed", list, authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: "a role"}, nil, authorizer.DecisionAllow, "a role", 1},
		{"remembered", list, authorizationv1.SubjectAccessReviewStatus{}, nil, authorizer.DecisionAllow, "a role", 1},
		{"not allowed", telemetry, authorizationv1.SubjectAccessReviewStatus{Reason: "no role"}, nil, authorizer.DecisionNoOpinion, "no role", 2},
		{"denied", in("b", list), authorizationv1.SubjectAccessReviewStatus{Allowed: true, Denied: true}, nil, authorizer.DecisionDeny, "", 3},
		{"nobody to ask", in("c", list), authorizationv1.SubjectAccessReviewStatus{}, errors.New("no route to 10.0.0.1"), authorizer.DecisionNoOpinion, errUnasked.Error(), 4},
	} {
		status, failure = step.status, step.failure
		decision, reason, err := authorize(t.Context(), step.request)
		if decision != step.want || reason != step.reason || err != nil || len(asked) != step.asked {
			t.Errorf("%s: %v, %q, %v, asked %d times", step.name, decision, reason, err, len(asked))
		}
	}
	if r := asked[0].ResourceAttributes; r == nil || r.Verb != "list" || r.Namespace != "a" || r.Group != "metrics.k8s.io" || r.Resource != "pods" || r.Version != "v1" {
		t.Errorf("asked for %+v", r)
	}
	if u := asked[0]; u.User != "alice" || u.UID != "1" || u.Groups[0] != "g" || u.Extra["k"][0] != "v" {
		t.Errorf("asked about %+v", u)
	}
	if r := asked[1].NonResourceAttributes; r == nil || r.Path != "/metrics" || r.Verb != "get" {
		t.Errorf("asked for %+v", r)
	}
}

func in(namespace string, request authorizer.AttributesRecord) authorizer.AttributesRecord {
	request.Namespace = namespace
	return request
}

func TestTokenReviews(t *testing.T) {
	client := fake.NewClientset()
	asked := 0
	client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		switch review.Spec.Token {
		case "good":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
				Username: "alice", UID: "1", Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}}
		case "expired":
			review.Status.Error = "it has expired"
		case "away":
			return true, nil, errors.New("away")
		}
		return true, review, nil
	})
	authenticate := tokenReviews(Config{Authentication: genericoptions.NewDelegatingAuthenticationOptions()}, client, new(outage))
	for range 2 {
		who, ok, err := authenticate(t.Context(), "good")
		if err != nil || !ok {
			t.Fatalf("a good token: %v, %v", ok, err)
		}
		if u := who.User; u.GetName() != "alice" || u.GetUID() != "1" || u.GetGroups()[0] != "g" || u.GetExtra()["k"][0] != "v" {
			t.Errorf("a good token is that of %+v", u)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times for one token", asked)
	}
	for token, want := range map[string]string{"wrong": "", "expired": "it has expired", "away": errUnasked.Error()} {
		_, ok, err := authenticate(t.Context(), token)
		if got := message(err); ok || got != want {
			t.Errorf("%s token: %v, %q", token, ok, got)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
