package dispatchjob

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-dev/dispatch/adapter"
	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/install"
)

// hubUser is the hub's ServiceAccount in an audit log.
const hubUser = "system:serviceaccount:" + install.Namespace + ":" + install.HubAccount

// write is one request by the hub that could change something, as the API server's audit log has it.
type write struct {
	verb, name string
	code       int32
	received   time.Time
}

func writesBy(t *target) []write {
	GinkgoHelper()
	events, err := t.AuditEvents()
	Expect(err).NotTo(HaveOccurred())
	var writes []write
	for _, e := range events {
		if e.User.Username == hubUser && slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, e.Verb) {
			w := write{verb: e.Verb, received: e.RequestReceivedTimestamp.Time}
			if e.ObjectRef != nil {
				w.name = e.ObjectRef.Name
			}
			if e.ResponseStatus != nil {
				w.code = e.ResponseStatus.Code
			}
			writes = append(writes, w)
		}
	}
	return writes
}

var _ = Describe("A target whose cluster is another all of a sudden", func() {
	It("gets nothing written, and its jobs are not believed gone", func(ctx SpecContext) {
		for _, name := range []string{"runs", "deleted"} {
			apply(ctx, team, name, "east", "gpu", template(time.Hour))
		}
		for _, name := range []string{"runs", "deleted"} {
			Eventually(phase).WithArguments(ctx, name).Should(Equal(v1alpha1.JobRunning))
		}
		uid := get(ctx, team, "runs").Status.Submission.Job.UID
		before := len(writesBy(west))

		setKubeConfig(ctx, "east", west.hub)
		_, err := hub.Kubectl(ctx, "delete", "dispatchjob", "-n", team, "deleted", "--wait=false")
		Expect(err).NotTo(HaveOccurred())
		for _, name := range []string{"runs", "deleted"} {
			Eventually(condition).WithArguments(ctx, team, name, v1alpha1.ClusterChangedCondition).Should(HaveField("Status", metav1.ConditionTrue))
		}
		Expect(condition(ctx, team, "deleted", v1alpha1.ReadyCondition)).To(And(
			HaveField("Reason", v1alpha1.CancelHeldReason), HaveField("Message", ContainSubstring(v1alpha1.ClusterChangedReason))))
		Consistently(func(g Gomega) {
			g.Expect(exists(ctx, "deleted")).To(BeTrue())
			g.Expect(get(ctx, team, "runs").Status.Submission.Job.UID).To(Equal(uid))
			g.Expect(condition(ctx, team, "runs", v1alpha1.FinishedCondition)).To(BeZero())
			g.Expect(writesBy(west)).To(HaveLen(before))
		}).WithTimeout(5 * time.Second).Should(Succeed())
		Expect(east.job(ctx, team, "deleted").DeletionTimestamp).To(BeNil())

		By("pointing the Secret back")
		setKubeConfig(ctx, "east", east.hub)
		Eventually(exists).WithArguments(ctx, "deleted").Should(BeFalse())
		Expect(east.job(ctx, team, "deleted")).To(BeNil())
		Eventually(phase).WithArguments(ctx, "runs").Should(Equal(v1alpha1.JobRunning))
		Eventually(condition).WithArguments(ctx, team, "runs", v1alpha1.ClusterChangedCondition).Should(BeZero())
	})
})

var _ = Describe("A target whose admission controller dies", Serial, func() {
	It("receives no write after the proof's expiry, while another one goes on", func(ctx SpecContext) {
		host, err := url.Parse(west.hub.Host)
		Expect(err).NotTo(HaveOccurred())
		network := newProxy(host.Host)
		defer network.listener.Close()
		through := rest.CopyConfig(west.hub)
		through.Host = "https://" + network.listener.Addr().String()
		// Once armed, the network holds from the moment that three writes are about to be sent, and not before.
		var armed atomic.Bool
		var writing atomic.Int32
		allWrite := make(chan struct{})
		through.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(req *http.Request) (*http.Response, error) {
				if armed.Load() && req.Method != http.MethodGet {
					if writing.Add(1) == 3 {
						network.hold(true)
						close(allWrite)
					}
					select {
					case <-allWrite:
					case <-req.Context().Done():
						return nil, req.Context().Err()
					}
				}
				return next.RoundTrip(req)
			})
		})
		library, err := adapter.Open(ctx, through, adapter.Options{Kueue: &v1alpha1.KueueSpec{ClusterQueue: "gpu"}})
		Expect(err).NotTo(HaveOccurred())
		defer library.Close()
		Expect(library.Preflight().Mode).To(Equal(v1alpha1.ModeReadWrite))

		submission := func(name string) adapter.Submission {
			var content map[string]any
			Expect(yaml.Unmarshal([]byte(template(time.Hour)), &content)).To(Succeed())
			return adapter.Submission{ID: name, Namespace: team, Name: name, LocalQueue: "gpu", Template: &unstructured.Unstructured{Object: roundTrip(content)}}
		}
		cancelled, err := library.Submit(ctx, submission("held-cancel"))
		Expect(err).NotTo(HaveOccurred())
		granted, err := library.Submit(ctx, submission("held-grant"))
		Expect(err).NotTo(HaveOccurred())
		Eventually(func(g Gomega) {
			inspection, err := library.Inspect(ctx, granted)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(inspection.Admissions).To(HaveValue(HaveField("Summary", "1/1")))
		}).Should(Succeed())
		for _, name := range []string{"kept", "raised"} {
			apply(ctx, team, name, "west", "gpu", template(time.Hour))
		}
		for _, name := range []string{"kept", "raised"} {
			Eventually(phase).WithArguments(ctx, name).Should(Equal(v1alpha1.JobRunning))
		}

		west.admission.Kill()
		var lease coordinationv1.Lease
		Expect(west.kube.Get(ctx, client.ObjectKey{Namespace: install.Namespace, Name: "dispatch-admission"}, &lease)).To(Succeed())
		expiry := lease.Spec.RenewTime.Add(2 * time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second)

		By("holding back a request of each kind until after the expiry")
		time.Sleep(time.Until(expiry.Add(-4 * time.Second)))
		armed.Store(true)
		together(
			func() {
				_, err := library.Submit(ctx, submission("held-back"))
				Expect(err).To(MatchError(adapter.ErrRequest))
			},
			func() {
				_, err := library.Cancel(ctx, cancelled)
				Expect(err).To(MatchError(adapter.ErrRequest))
			},
			func() { Expect(library.Grant(ctx, granted, 2)).To(MatchError(adapter.ErrRequest)) },
		)
		Expect(allWrite).To(BeClosed(), "all three were on their way")
		Expect(time.Now()).To(BeTemporally("<", expiry))

		By("asking for writes of every kind all the while")
		apply(ctx, team, "late", "west", "gpu", template(time.Hour))
		apply(ctx, team, "elsewhere", "east", "gpu", template(time.Hour))
		time.Sleep(time.Until(expiry.Add(2 * time.Second)))
		network.hold(false)
		remove(ctx, "kept")
		patch(ctx, "raised", `{"spec":{"admissions":2}}`)
		Eventually(phase).WithArguments(ctx, "elsewhere").Should(Equal(v1alpha1.JobRunning))
		apply(ctx, team, "later", "west", "gpu", template(time.Hour))
		Eventually(condition).WithArguments(ctx, team, "later", v1alpha1.SubmittedCondition).Should(And(
			HaveField("Reason", v1alpha1.TargetObserveOnlyReason), HaveField("Message", ContainSubstring("ReadmissionGate (LeaseStale)"))))
		Eventually(condition).WithArguments(ctx, team, "kept", v1alpha1.ReadyCondition).Should(And(
			HaveField("Reason", v1alpha1.CancelHeldReason), HaveField("Message", ContainSubstring("ReadmissionGate (LeaseStale)"))))
		Eventually(condition).WithArguments(ctx, team, "raised", v1alpha1.ReadyCondition).Should(And(
			HaveField("Reason", v1alpha1.TargetObserveOnlyReason), HaveField("Message", ContainSubstring("ReadmissionGate (LeaseStale)"))))
		_, err = library.Cancel(ctx, adapter.Job{})
		Expect(err).To(MatchError(adapter.ErrObserveOnly))
		Expect(library.Grant(ctx, adapter.Job{}, 2)).To(MatchError(adapter.ErrObserveOnly))
		time.Sleep(3 * time.Second)
		for _, w := range writesBy(west) {
			Expect(w.received).To(BeTemporally("<=", expiry.Add(time.Second)), "%s of %s", w.verb, w.name)
		}
		Expect(west.job(ctx, team, "held-back")).To(BeNil())
		Expect(west.job(ctx, team, "held-cancel").DeletionTimestamp).To(BeNil())
		Expect(west.job(ctx, team, "kept").DeletionTimestamp).To(BeNil())
		inspection, err := library.Inspect(ctx, granted)
		Expect(err).NotTo(HaveOccurred())
		Expect(inspection.Admissions.Granted).To(BeEquivalentTo(1))

		By("starting a new one")
		Expect(west.admission.Start(ctx)).To(Succeed())
		Eventually(gateOf).WithArguments(ctx, "west").WithPolling(20 * time.Millisecond).Should(Equal(v1alpha1.ProvedReason))
		proved := time.Now()
		Eventually(west.job).WithArguments(ctx, team, "later").WithPolling(20 * time.Millisecond).ShouldNot(BeNil())
		AddReportEntry("seconds from proof to submission", time.Since(proved).Seconds())
		Expect(time.Since(proved)).To(BeNumerically("<", time.Second))
		Eventually(exists).WithArguments(ctx, "kept").Should(BeFalse())
		Eventually(func(g Gomega) { g.Expect(get(ctx, team, "raised").Status.Admissions.Summary).To(Equal("1/2")) }).Should(Succeed())
		for _, job := range []adapter.Job{cancelled, granted} {
			Eventually(func(g Gomega) {
				gone, err := library.Cancel(ctx, job)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(gone).To(BeTrue())
			}).Should(Succeed())
		}
	})
})

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// roundTrip makes of any content what a client reads: numbers are int64.
func roundTrip(content map[string]any) map[string]any {
	GinkgoHelper()
	data, err := json.Marshal(content)
	Expect(err).NotTo(HaveOccurred())
	u := &unstructured.Unstructured{}
	Expect(u.UnmarshalJSON(data)).To(Succeed())
	return u.Object
}
