package election

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/install"
)

const flowSchema = "dispatch-leader-election"

// TestFlowSchema starves dispatch-manager's ServiceAccount of the API server's
// seats: renewals go on by the FlowSchema in config/apf, and stall without it.
func TestFlowSchema(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	cluster := controlplane.StartForTest(t, controlplane.Options{Args: map[string][]string{
		"kube-apiserver": {"--max-requests-inflight=8", "--max-mutating-requests-inflight=4"},
	}})
	g.Expect(installAll(ctx, cluster)).To(Succeed())
	root, err := install.Root()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cluster.Apply(ctx, filepath.Join(root, "config/apf"))).To(Succeed())
	for _, program := range []string{manager, admission} {
		seesFlowSchema(t, cluster, program)
	}

	e := inNamespace(t, cluster, manager, install.Namespace)
	lease := e.watchLease()
	leader := e.startLeader(nil)
	holder := lease.last().holder
	starve(t, cluster)

	const starved = 30 * time.Second
	since := time.Now()
	g.Consistently(leader.Running).WithTimeout(starved).WithPolling(100 * time.Millisecond).Should(BeTrue())
	with := lease.gaps(since, time.Now())
	g.Expect(with[0]).To(BeNumerically("<=", 4*time.Second), "the longest time without a renewal")
	g.Expect(lease.holders()).To(HaveExactElements(holder))

	g.Expect(e.client.Delete(ctx, &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: flowSchema}})).To(Succeed())
	since = time.Now()
	g.Eventually(leader.Running).WithTimeout(starved).WithPolling(100*time.Millisecond).
		Should(BeFalse(), "without the FlowSchema the Lease is lost")
	without := lease.gaps(since, time.Now())
	g.Expect(leader.ExitCode()).To(Equal(1))
	// Whichever is noticed first: that it could not be renewed, or that it ran out.
	g.Expect(leader.lastLine()).To(MatchRegexp("^dispatch-manager: (leader election lost|lease lost: .*)$"))
	t.Logf("starved for %s, the longest time without a renewal: with the FlowSchema %s; without it %s, and the Lease was lost",
		starved, with[0].Round(time.Millisecond), without[0].Round(time.Millisecond))
}

// seesFlowSchema waits until the API server treats the program's requests for
// its Lease as the FlowSchema says, and checks that others go elsewhere.
func seesFlowSchema(t *testing.T, cluster *controlplane.Cluster, program string) {
	t.Helper()
	g := NewWithT(t)
	var schema flowcontrolv1.FlowSchema
	var level flowcontrolv1.PriorityLevelConfiguration
	admin := newClient(t, cluster)
	g.Expect(admin.Get(t.Context(), client.ObjectKey{Name: flowSchema}, &schema)).To(Succeed())
	g.Expect(admin.Get(t.Context(), client.ObjectKey{Name: "leader-election"}, &level)).To(Succeed())

	config, err := cluster.ServiceAccountConfig(t.Context(), install.Namespace, program)
	g.Expect(err).NotTo(HaveOccurred())
	httpClient, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	classified := func(method, path string) func() ([2]string, error) {
		return func() ([2]string, error) {
			req, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, http.NoBody)
			if err != nil {
				return [2]string{}, err
			}
			resp, err := httpClient.Do(req)
			if err != nil {
				return [2]string{}, err
			}
			defer resp.Body.Close()
			return [2]string{
				resp.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID),
				resp.Header.Get(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID),
			}, nil
		}
	}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/" + install.Namespace + "/leases"
	ours := [2]string{string(schema.UID), string(level.UID)}
	for _, request := range [][2]string{
		{http.MethodGet, leases + "/" + program},
		{http.MethodPut, leases + "/" + program},
		{http.MethodPost, leases},
	} {
		g.Eventually(classified(request[0], request[1])).WithTimeout(10*time.Second).Should(Equal(ours), "%s %s", request[0], request[1])
	}
	g.Expect(classified(http.MethodGet, "/apis/dispatch.dev/v1alpha1/dispatchtargets")()).NotTo(Equal(ours))
}

// starve keeps more requests of dispatch-manager's ServiceAccount waiting than
// the API server has seats for, until the test ends: each writes an event, for
// which a webhook is called that does not answer.
func starve(t *testing.T, cluster *controlplane.Cluster) {
	t.Helper()
	g := NewWithT(t)
	end := make(chan struct{})
	webhook := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
	t.Cleanup(func() { close(end); webhook.Close() })
	g.Expect(newClient(t, cluster).Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hangs"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "events.hang.example",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      ptr.To(webhook.URL),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{"events.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"events"},
				},
			}},
			MatchPolicy:             ptr.To(admissionregistrationv1.Exact),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds:          ptr.To[int32](30),
			AdmissionReviewVersions: []string{"v1"},
		}},
	})).To(Succeed())

	config, err := cluster.ServiceAccountConfig(t.Context(), install.Namespace, manager)
	g.Expect(err).NotTo(HaveOccurred())
	config.QPS = -1
	account, err := client.New(config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	for i := range 60 {
		all.Go(func() {
			for ctx.Err() == nil {
				_ = account.Create(ctx, event(i)) // it cannot succeed, but only be slow
			}
		})
	}
	// What is starved shows in any other request of the same account.
	g.Eventually(func() error {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		return account.List(ctx, &v1alpha1.DispatchTargetList{})
	}).WithTimeout(30 * time.Second).Should(MatchError(context.DeadlineExceeded))
}

func event(i int) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: install.Namespace, GenerateName: fmt.Sprintf("load-%d-", i)},
		EventTime:           metav1.NowMicro(),
		ReportingController: "dispatch.dev/test",
		ReportingInstance:   "test",
		Action:              "Waiting",
		Reason:              "Waiting",
		Type:                corev1.EventTypeNormal,
		Regarding:           corev1.ObjectReference{Kind: "Namespace", Name: install.Namespace, Namespace: install.Namespace},
	}
}
