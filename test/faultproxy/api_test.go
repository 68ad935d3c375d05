package faultproxy

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/dispatch-dev/dispatch/test/controlplane"
)

// standIn is a server that counts its requests, and a proxy in front of it. get
// sends one request through the proxy and reads all of the answer.
type standIn struct {
	*API
	served atomic.Int32
	client *http.Client
}

func newStandIn(t *testing.T) *standIn {
	t.Helper()
	g := NewWithT(t)
	s := &standIn{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.served.Add(1)
		_, _ = fmt.Fprintf(w, "%s %s", r.Method, r.Header.Get("Authorization"))
	}))
	t.Cleanup(server.Close)
	upstream := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}}
	var err error
	s.API, err = NewAPI(upstream)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(s.Close)
	s.client, err = rest.HTTPClientFor(s.Config(&rest.Config{BearerToken: "secret"}))
	g.Expect(err).NotTo(HaveOccurred())
	return s
}

type answer struct {
	Code   int
	Header http.Header
	Body   string
}

func (s *standIn) get(ctx context.Context, path string) (answer, error) {
	return s.send(ctx, http.MethodGet, path, nil)
}

func (s *standIn) send(ctx context.Context, method, path string, body io.Reader) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, method, s.server.URL+path, body)
	if err != nil {
		return answer{}, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(text)}, err
}

func TestHandsOnWithTheToken(t *testing.T) {
	g := NewWithT(t)
	s := newStandIn(t)
	g.Expect(s.get(t.Context(), "/api")).To(HaveField("Body", "GET Bearer secret"))
}

func TestAnswersInPlaceOfTheServer(t *testing.T) {
	for name, c := range map[string]struct {
		handler Handler
		expect  types.GomegaMatcher // of the answer
	}{
		"500":      {Status(http.StatusInternalServerError), HaveField("Code", 500)},
		"429":      {TooManyRequests(7), And(HaveField("Code", 429), HaveField("Header", HaveKeyWithValue("Retry-After", []string{"7"})))},
		"redirect": {Redirect("/elsewhere"), HaveField("Body", "GET Bearer secret")},
		"corrupt":  {CorruptBody, And(HaveField("Code", 200), HaveField("Body", HaveLen(len("GET Bearer secret"))), HaveField("Body", Not(ContainSubstring("GET"))))},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newStandIn(t)
			rule := s.Handle(c.handler, Path("/broken"))
			g.Expect(s.get(t.Context(), "/broken/thing")).To(c.expect)
			g.Expect(rule.Hits()).To(Equal(1))
			g.Expect(s.get(t.Context(), "/whole")).To(HaveField("Body", "GET Bearer secret"))
			rule.Remove()
			g.Expect(s.get(t.Context(), "/broken/thing")).To(HaveField("Body", "GET Bearer secret"))
			g.Expect(s.Count(Path("/broken"))).To(Equal(2))
		})
	}
}

func TestMatches(t *testing.T) {
	g := NewWithT(t)
	s := newStandIn(t)
	code := func(method, path string) int {
		a, err := s.send(t.Context(), method, path, nil)
		g.Expect(err).NotTo(HaveOccurred())
		return a.Code
	}
	s.Handle(Status(501), Path("/a"))
	s.Handle(Status(502), Path("/a"), Method(http.MethodPut))
	s.Handle(Status(503), Path("/a"), Watch)
	s.Handle(Status(504), Path("/b"), First(2))
	s.Handle(Status(505), UserAgent("nobody"))
	s.Handle(Status(506), Path("/c"), Except(Method(http.MethodGet)))
	g.Expect(code(http.MethodGet, "/a")).To(Equal(501))
	g.Expect(code(http.MethodPut, "/a/x")).To(Equal(502), "the newest rule that matches")
	g.Expect(code(http.MethodGet, "/a?watch=true")).To(Equal(503))
	g.Expect(code(http.MethodGet, "/b")).To(Equal(504))
	g.Expect(code(http.MethodGet, "/b")).To(Equal(504))
	g.Expect(code(http.MethodGet, "/b")).To(Equal(200))
	g.Expect(code(http.MethodGet, "/c")).To(Equal(200))
	g.Expect(code(http.MethodDelete, "/c")).To(Equal(506))
	g.Expect(s.Count()).To(Equal(8))
	g.Expect(s.Count(UserAgent("Go-http-client"))).To(Equal(8))
}

func TestHoldsAndDelays(t *testing.T) {
	for name, c := range map[string]struct {
		make   func(release <-chan struct{}) Handler
		before int // requests that the server sees before the release
	}{
		"HoldRequest":  {HoldRequest, 0},
		"HoldResponse": {HoldResponse, 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newStandIn(t)
			release := make(chan struct{})
			s.Handle(c.make(release))
			answers := make(chan answer, 1)
			go func() {
				a, err := s.get(t.Context(), "/")
				if err != nil {
					t.Error(err)
				}
				answers <- a
			}()
			served := func() int { return int(s.served.Load()) }
			g.Eventually(s.Count).Should(Equal(1))
			g.Eventually(served).Should(Equal(c.before))
			g.Consistently(answers, moment).ShouldNot(Receive())
			g.Expect(served()).To(Equal(c.before))
			close(release)
			g.Eventually(answers).Should(Receive(HaveField("Body", "GET Bearer secret")))
		})
	}
	for name, handler := range map[string]Handler{
		"DelayRequest":  DelayRequest(moment),
		"DelayResponse": DelayResponse(moment),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newStandIn(t)
			s.Handle(handler)
			start := time.Now()
			g.Expect(s.get(t.Context(), "/")).To(HaveField("Body", "GET Bearer secret"))
			g.Expect(time.Since(start)).To(BeNumerically(">=", moment))
		})
	}
}

func TestClientThatGivesUp(t *testing.T) {
	for name, handler := range map[string]Handler{
		"hang":         Hang,
		"endless body": EndlessBody,
		"delay":        DelayRequest(time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newStandIn(t)
			ended := make(chan struct{})
			s.Handle(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				defer close(ended)
				handler(w, r, next)
			})
			ctx, cancel := context.WithTimeout(t.Context(), moment)
			defer cancel()
			_, err := s.get(ctx, "/")
			g.Expect(err).To(MatchError(context.DeadlineExceeded))
			g.Eventually(ended).Should(BeClosed())
			g.Expect(s.served.Load()).To(BeZero())
		})
	}
}

func TestAbort(t *testing.T) {
	g := NewWithT(t)
	s := newStandIn(t)
	s.Handle(Abort)
	_, err := s.get(t.Context(), "/")
	g.Expect(err).To(HaveOccurred())
	g.Expect(s.Count()).To(BeNumerically(">=", 1))
	g.Expect(s.served.Load()).To(BeZero())
}

// TestRealServer goes through the proxy as a ServiceAccount, in both versions of
// HTTP, with a watch that streams.
func TestRealServer(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	cluster := controlplane.StartForTest(t, controlplane.Options{})
	g.Expect(cluster.ApplyYAML(ctx, []byte(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: tester, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: tester}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects:
- {kind: ServiceAccount, name: tester, namespace: default}
`))).To(Succeed())
	account, err := cluster.ServiceAccountConfig(ctx, "default", "tester")
	g.Expect(err).NotTo(HaveOccurred())

	for protocol, major := range map[string]int{"http/1.1": 1, "h2": 2} {
		t.Run(protocol, func(t *testing.T) {
			g := NewWithT(t)
			proxy, err := NewAPI(cluster.Config())
			g.Expect(err).NotTo(HaveOccurred())
			t.Cleanup(proxy.Close)
			config := proxy.Config(account)
			config.NextProtos = []string{protocol}
			client, err := kubernetes.NewForConfig(config)
			g.Expect(err).NotTo(HaveOccurred())
			configMaps := client.CoreV1().ConfigMaps("default")
			g.Eventually(func() error {
				_, err := configMaps.List(ctx, metav1.ListOptions{})
				return err
			}, 30*time.Second).Should(Succeed())
			g.Expect(proxy.Count(func(r *http.Request) bool { return r.ProtoMajor == major })).NotTo(BeZero())
			g.Expect(proxy.Count(func(r *http.Request) bool { return r.ProtoMajor != major })).To(BeZero())

			name := fmt.Sprintf("version-%d", major)
			events, err := configMaps.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
			g.Expect(err).NotTo(HaveOccurred())
			defer events.Stop()
			configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}

			failure := proxy.Handle(Status(http.StatusInternalServerError), Method(http.MethodPost))
			_, err = configMaps.Create(ctx, configMap, metav1.CreateOptions{})
			g.Expect(err).To(Satisfy(apierrors.IsInternalError))
			failure.Remove()
			proxy.Handle(CorruptBody, Method(http.MethodGet), Except(Watch))
			_, err = configMaps.Get(ctx, name, metav1.GetOptions{})
			g.Expect(err).To(HaveOccurred())

			_, err = configMaps.Create(ctx, configMap, metav1.CreateOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Eventually(events.ResultChan(), 30*time.Second).Should(Receive(HaveField("Object.Name", name)))
		})
	}
}

// TestCloseEndsRequests with a body too, of which net/http sees the client's
// end only when it has been read.
func TestCloseEndsRequests(t *testing.T) {
	g := NewWithT(t)
	s := newStandIn(t)
	s.Handle(Hang)
	failed := make(chan error, 1)
	go func() {
		_, err := s.send(t.Context(), http.MethodPost, "/", strings.NewReader("body"))
		failed <- err
	}()
	g.Eventually(s.Count).Should(Equal(1))
	s.Close()
	g.Eventually(failed).Should(Receive(HaveOccurred()))
}
