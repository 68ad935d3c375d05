package admission

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

// eviction takes a running Job's admission away and makes sure that quota can be reserved for it again.
type eviction func(ctx context.Context, s site, job *batchv1.Job)

var _ = DescribeTable("A job that was evicted", func(ctx SpecContext, why string, evict eviction, change ...func(*batchv1.Job)) {
	s := newSite(ctx, kueuejobs.Check)
	job := s.submit(ctx, "train", 4*time.Second, append(change, priority("low"))...)
	eventuallyRuns(ctx, job, 1)

	evict(ctx, s, job)

	eventuallyHeld(ctx, job, 2)
	Expect(entry(ctx, job, kueuejobs.Check).Message).To(ContainSubstring(why))
	Expect(events(ctx, job)).To(ContainSubstring("AdmissionHeld: admission 2 waits since "))

	By("granting it")
	raise(ctx, job, 2)
	granted := time.Now()
	Eventually(starts.Of).WithArguments(job.UID).Should(Equal(2))
	AddReportEntry("seconds from grant to start", starts.Last(job.UID).Sub(granted).Seconds())
	Expect(starts.Last(job.UID)).To(BeTemporally("<", granted.Add(time.Second)))
	eventuallyRuns(ctx, job, 2)
	if len(change) == 0 {
		Eventually(succeeded).WithArguments(ctx, job).Should(BeTrue())
		Expect(starts.Of(job.UID)).To(Equal(2))
	}
},
	Entry("by preemption", "evicted (Preempted to accommodate a workload", eviction(func(ctx context.Context, s site, job *batchv1.Job) {
		urgent := s.submit(ctx, "urgent", 2*time.Second, priority("high"))
		eventuallyRuns(ctx, urgent, 1)
		Eventually(succeeded).WithArguments(ctx, urgent).Should(BeTrue())
	})),
	Entry("because its pods were never ready", "evicted (Exceeded the PodsReady timeout", eviction(func(ctx context.Context, _ site, job *batchv1.Job) {
		Eventually(workloadCondition).WithArguments(ctx, job, kueuev1beta2.WorkloadAdmitted).Should(BeFalse())
	}), func(job *batchv1.Job) {
		job.Spec.Template.Spec.NodeSelector = map[string]string{"no": "such-node"}
	}),
	Entry("by deactivation", "evicted (The workload is deactivated)", eviction(func(ctx context.Context, _ site, job *batchv1.Job) {
		setActive := func(active bool) {
			Eventually(func() error {
				wl := workload(ctx, job)
				wl.Spec.Active = ptr.To(active)
				return kube.Update(ctx, wl)
			}).Should(Succeed())
		}
		setActive(false)
		Eventually(suspended).WithArguments(ctx, job).Should(BeTrue())
		setActive(true)
	})),
	Entry("by a stopped ClusterQueue", "evicted (The ClusterQueue is stopped)", eviction(func(ctx context.Context, s site, job *batchv1.Job) {
		s.stop(ctx, kueuev1beta2.HoldAndDrain)
		Eventually(suspended).WithArguments(ctx, job).Should(BeTrue())
		Eventually(workloadCondition).WithArguments(ctx, job, kueuev1beta2.WorkloadQuotaReserved).Should(BeFalse())
		s.stop(ctx, kueuev1beta2.None)
	})),
	Entry("with its Workload deleted", "1 of 1 granted used", eviction(func(ctx context.Context, _ site, job *batchv1.Job) {
		before := workload(ctx, job)
		Expect(kube.Delete(ctx, before)).To(Succeed())
		Eventually(func(g Gomega) {
			now := workload(ctx, job)
			g.Expect(now).NotTo(BeNil())
			g.Expect(now.UID).NotTo(Equal(before.UID))
			g.Expect(meta.FindStatusCondition(now.Status.Conditions, kueuev1beta2.WorkloadAdmitted)).To(BeNil())
		}).Should(Succeed())
	})),
)
