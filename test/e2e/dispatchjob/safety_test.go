package dispatchjob

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
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
		library, err := adapter.Open(ctx, through, adapter.Options{Kueue: &v1alpha1.KueueSpec{ClusterQueue: "gpu"}})
		Expect(err).NotTo(HaveOccurred())
		defer library.Close()
		Expect(library.Preflight().Mode).To(Equal(v1alpha1.ModeReadWrite))

		west.admission.Kill()
		var lease coordinationv1.Lease
		Expect(west.kube.Get(ctx, client.ObjectKey{Namespace: install.Namespace, Name: "dispatch-admission"}, &lease)).To(Succeed())
		expiry := lease.Spec.RenewTime.Add(2 * time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second)

		By("holding back a request until after the expiry")
		time.Sleep(time.Until(expiry.Add(-4 * time.Second)))
		var content map[string]any
		Expect(yaml.Unmarshal([]byte(template(time.Hour)), &content)).To(Succeed())
		_, err = library.Submit(ctx, adapter.Submission{
			ID: "held-back", Namespace: team, Name: "held-back", LocalQueue: "gpu", Template: &unstructured.Unstructured{Object: roundTrip(content)},
			Intend: func(context.Context, types.UID) error { network.hold(true); return nil },
		})
		Expect(err).To(MatchError(adapter.ErrRequest))
		Expect(time.Now()).To(BeTemporally("<", expiry))

		By("asking for writes of every kind all the while")
		apply(ctx, team, "late", "west", "gpu", template(time.Hour))
		apply(ctx, team, "elsewhere", "east", "gpu", template(time.Hour))
		time.Sleep(time.Until(expiry.Add(2 * time.Second)))
		network.hold(false)
		Eventually(phase).WithArguments(ctx, "elsewhere").Should(Equal(v1alpha1.JobRunning))
		apply(ctx, team, "later", "west", "gpu", template(time.Hour))
		Eventually(condition).WithArguments(ctx, team, "later", v1alpha1.SubmittedCondition).Should(And(
			HaveField("Reason", v1alpha1.TargetObserveOnlyReason), HaveField("Message", ContainSubstring("ReadmissionGate (LeaseStale)"))))
		_, err = library.Cancel(ctx, adapter.Job{})
		Expect(err).To(MatchError(adapter.ErrObserveOnly))
		Expect(library.Grant(ctx, adapter.Job{}, 2)).To(MatchError(adapter.ErrObserveOnly))
		time.Sleep(3 * time.Second)
		for _, w := range writesBy(west) {
			Expect(w.received).To(BeTemporally("<=", expiry.Add(time.Second)), "%s of %s", w.verb, w.name)
		}
		Expect(west.job(ctx, team, "held-back")).To(BeNil())

		By("starting a new one")
		Expect(west.admission.Start(ctx)).To(Succeed())
		Eventually(gateOf).WithArguments(ctx, "west").WithPolling(20 * time.Millisecond).Should(Equal(v1alpha1.ProvedReason))
		proved := time.Now()
		Eventually(west.job).WithArguments(ctx, team, "later").WithPolling(20 * time.Millisecond).ShouldNot(BeNil())
		AddReportEntry("seconds from proof to submission", time.Since(proved).Seconds())
		Expect(time.Since(proved)).To(BeNumerically("<", time.Second))
	})
})

// roundTrip makes of any content what a client reads: numbers are int64.
func roundTrip(content map[string]any) map[string]any {
	GinkgoHelper()
	data, err := json.Marshal(content)
	Expect(err).NotTo(HaveOccurred())
	u := &unstructured.Unstructured{}
	Expect(u.UnmarshalJSON(data)).To(Succeed())
	return u.Object
}
