package main

// scrapedMoments are instant queries, one per line, with equal answers if both know the same
// windows. IN matches the living workloads, JOB those of them that are jobs.
const scrapedMoments = `
mete_workload_cpu_seconds_total{IN}
mete_workload_memory_byte_seconds_total{IN}
mete_workload_energy_joules_total{IN}
mete_workload_energy_joules_total{IN,domain="package"}
mete_workload_energy_joules_total{IN,domain!="package"}
mete_workload_energy_joules_total{IN,domain=~"dram|rest"}
mete_workload_energy_error_joules_total{IN}
mete_workload_energy_idle_joules_total{IN}
mete_workload_info{IN}
mete_workload_info{IN,kind="job"}
mete_workload_info{IN,kind!="job",name!=""}
mete_workload_info{IN,name=~"st.*|pu.*|l..e"}
mete_workload_info{IN,kind=~"system|idle"}
{__name__=~"mete_workload_(cpu_seconds|energy).*",IN}
{__name__="mete_workload_cpu_seconds_total",IN,node="elsewhere"}
mete_workload_cpu_seconds_total{JOB}
sum(mete_workload_cpu_seconds_total{IN})
sum by (node) (mete_workload_cpu_seconds_total{IN})
sum by (cluster, node) (mete_workload_memory_byte_seconds_total{IN})
sum by (domain) (mete_workload_energy_joules_total{IN})
sum by (node, domain) (mete_workload_energy_joules_total{IN})
sum by (node, workload) (mete_workload_energy_joules_total{IN})
sum without (workload) (mete_workload_cpu_seconds_total{IN})
sum without (workload, domain) (mete_workload_energy_joules_total{IN})
avg by (node) (mete_workload_memory_byte_seconds_total{IN})
min by (node) (mete_workload_memory_byte_seconds_total{IN})
max by (node) (mete_workload_cpu_seconds_total{IN})
max without (workload) (mete_workload_energy_error_joules_total{IN})
count(mete_workload_info{IN})
count by (node) (mete_workload_cpu_seconds_total{IN})
count by (kind) (mete_workload_info{IN})
count by (node, kind) (mete_workload_info{IN})
count by (name) (mete_workload_info{JOB})
count by (domain) (mete_workload_energy_joules_total{IN})
group by (node) (mete_workload_cpu_seconds_total{IN})
stddev by (node) (mete_workload_cpu_seconds_total{IN})
stdvar by (node) (mete_workload_cpu_seconds_total{IN})
quantile(0.5, mete_workload_memory_byte_seconds_total{IN})
quantile by (node) (0.9, mete_workload_cpu_seconds_total{IN})
topk(3, mete_workload_cpu_seconds_total{IN})
topk by (node) (2, mete_workload_memory_byte_seconds_total{IN})
bottomk(1, mete_workload_cpu_seconds_total{JOB})
topk(5, sum by (node, workload) (mete_workload_energy_joules_total{IN}))
count_values("n", count by (node) (mete_workload_energy_joules_total{IN,domain="package"}))
mete_workload_cpu_seconds_total{IN} * on (node, workload) group_left (name, kind) mete_workload_info{IN}
mete_workload_cpu_seconds_total{IN} * on (cluster, node, workload) group_left (name) mete_workload_info{IN,kind="job"}
mete_workload_info{IN} * on (node, workload) group_right (name, parent) mete_workload_energy_joules_total{IN}
sum by (name) (mete_workload_cpu_seconds_total{IN} * on (node, workload) group_left (name) mete_workload_info{IN})
sum by (kind) (mete_workload_memory_byte_seconds_total{IN} * on (node, workload) group_left (kind) mete_workload_info{IN})
sum by (node, kind) (mete_workload_energy_joules_total{IN} * on (node, workload) group_left (kind) mete_workload_info{IN})
topk(2, sum by (name) (mete_workload_energy_joules_total{IN} * on (node, workload) group_left (name) mete_workload_info{JOB}))
count by (parent) (mete_workload_info{IN,parent!=""})
mete_workload_cpu_seconds_total{IN} and on (node, workload) mete_workload_info{IN,kind="job"}
mete_workload_cpu_seconds_total{IN} unless on (node, workload) mete_workload_info{IN,kind="job"}
mete_workload_cpu_seconds_total{IN,node="elsewhere"} or mete_workload_cpu_seconds_total{IN}
mete_workload_energy_idle_joules_total{IN} / on (node, workload) sum by (node, workload) (mete_workload_energy_joules_total{IN})
mete_workload_energy_error_joules_total{IN} / on (node, workload) sum by (node, workload) (mete_workload_energy_joules_total{IN})
mete_workload_energy_joules_total{IN} / on (node, workload) group_left () mete_workload_cpu_seconds_total{IN}
sum by (node) (mete_workload_energy_joules_total{IN}) / on (node) sum by (node) (mete_workload_cpu_seconds_total{IN})
mete_workload_cpu_seconds_total{IN} / on (node) group_left () sum by (node) (mete_workload_cpu_seconds_total{IN})
mete_workload_cpu_seconds_total{IN} > 1
mete_workload_cpu_seconds_total{IN} > bool 1
mete_workload_cpu_seconds_total{IN} >= on (node) group_left () avg by (node) (mete_workload_cpu_seconds_total{IN})
mete_workload_memory_byte_seconds_total{IN} / 2 ^ 20 > 1
mete_workload_cpu_seconds_total{IN} offset 30s
mete_workload_energy_joules_total{IN} offset 30s
sum by (node) (mete_workload_memory_byte_seconds_total{IN} offset 30s)
mete_workload_cpu_seconds_total{IN} - mete_workload_cpu_seconds_total{IN} offset 30s
(mete_workload_energy_joules_total{IN} - mete_workload_energy_joules_total{IN} offset 30s) / 30
sum by (node) (mete_workload_memory_byte_seconds_total{IN} - mete_workload_memory_byte_seconds_total{IN} offset 30s) / 30
topk(3, mete_workload_cpu_seconds_total{IN} - mete_workload_cpu_seconds_total{IN} offset 30s)
mete_workload_cpu_seconds_total{IN} @ THEN
mete_workload_cpu_seconds_total{IN} - mete_workload_cpu_seconds_total{IN} @ THEN
sum by (domain) (mete_workload_energy_joules_total{IN} @ THEN)
topk(2, mete_workload_cpu_seconds_total{IN} @ THEN)
mete_workload_cpu_seconds_total{IN} @ end()
max_over_time(mete_workload_cpu_seconds_total{IN}[75s])
max by (node) (max_over_time(mete_workload_memory_byte_seconds_total{IN}[75s]))
last_over_time(mete_workload_energy_joules_total{IN}[90s])
present_over_time(mete_workload_cpu_seconds_total{IN}[75s])
resets(mete_workload_cpu_seconds_total{IN}[75s])
absent(mete_workload_cpu_seconds_total{IN})
absent(mete_workload_cpu_seconds_total{node="nowhere"})
absent_over_time(mete_workload_energy_joules_total{IN,domain="gpu"}[1m])
ceil(mete_workload_cpu_seconds_total{IN})
floor(mete_workload_energy_joules_total{IN})
round(mete_workload_energy_joules_total{IN}, 0.01)
clamp(mete_workload_cpu_seconds_total{IN}, 0.5, 10)
clamp_min(mete_workload_cpu_seconds_total{IN}, 2)
sqrt(mete_workload_memory_byte_seconds_total{IN})
ln(mete_workload_memory_byte_seconds_total{IN} + 1)
log10(mete_workload_memory_byte_seconds_total{IN} + 1)
sgn(mete_workload_energy_joules_total{IN})
scalar(sum(mete_workload_cpu_seconds_total{IN}))
vector(scalar(sum(mete_workload_energy_joules_total{IN})))
sort(sum by (node) (mete_workload_cpu_seconds_total{IN}))
label_replace(sum by (node) (mete_workload_cpu_seconds_total{IN}), "short", "$1", "node", "(.).*")
label_join(sum by (cluster, node) (mete_workload_cpu_seconds_total{IN}), "both", "/", "cluster", "node")
sum(mete_workload_energy_joules_total{IN}) / 3.6e6 * 0.3
-sum by (node) (mete_workload_cpu_seconds_total{IN}) % 7
`

// scrapedSpans are queries over a time range. Both have different samples in it, so each answer
// must be within the possible use; a leading ~ marks an answer that falls with higher use. OLD
// matches the workloads that lived for the whole range.
const scrapedSpans = `
rate(mete_workload_cpu_seconds_total{OLD}[30s])
rate(mete_workload_cpu_seconds_total{OLD}[60s])
rate(mete_workload_memory_byte_seconds_total{OLD}[60s])
rate(mete_workload_energy_joules_total{OLD}[60s])
rate(mete_workload_energy_error_joules_total{OLD}[60s])
rate(mete_workload_energy_idle_joules_total{OLD}[60s])
increase(mete_workload_cpu_seconds_total{OLD}[60s])
increase(mete_workload_energy_joules_total{OLD}[45s])
delta(mete_workload_cpu_seconds_total{OLD}[60s])
rate(mete_workload_cpu_seconds_total{OLD}[30s] offset 30s)
sum(rate(mete_workload_cpu_seconds_total{OLD}[60s]))
sum by (node) (rate(mete_workload_cpu_seconds_total{OLD}[60s]))
sum by (node) (rate(mete_workload_memory_byte_seconds_total{OLD}[60s]))
sum by (node, domain) (rate(mete_workload_energy_joules_total{OLD}[60s]))
sum by (domain) (rate(mete_workload_energy_joules_total{OLD}[30s]))
sum without (workload) (rate(mete_workload_energy_joules_total{OLD}[60s]))
sum without (domain) (increase(mete_workload_energy_joules_total{OLD}[60s]))
avg by (node) (rate(mete_workload_cpu_seconds_total{OLD}[60s]))
min by (node) (rate(mete_workload_memory_byte_seconds_total{OLD}[60s]))
max by (node) (rate(mete_workload_cpu_seconds_total{OLD}[60s]))
quantile by (node) (0.9, rate(mete_workload_cpu_seconds_total{OLD}[60s]))
quantile(0.5, rate(mete_workload_memory_byte_seconds_total{OLD}[60s]))
topk(3, rate(mete_workload_cpu_seconds_total{OLD}[60s]))
topk by (node) (2, rate(mete_workload_cpu_seconds_total{OLD}[60s]))
bottomk(2, rate(mete_workload_cpu_seconds_total{OLD}[60s]))
topk(4, sum by (node, workload) (rate(mete_workload_energy_joules_total{OLD}[60s])))
rate(mete_workload_cpu_seconds_total{OLD}[60s]) * on (node, workload) group_left (name, kind) mete_workload_info{OLD}
sum by (name) (rate(mete_workload_cpu_seconds_total{OLD}[60s]) * on (node, workload) group_left (name) mete_workload_info{OLD})
sum by (kind) (rate(mete_workload_energy_joules_total{OLD}[60s]) * on (node, workload) group_left (kind) mete_workload_info{OLD})
topk(2, sum by (name) (rate(mete_workload_energy_joules_total{OLD}[60s]) * on (node, workload) group_left (name) mete_workload_info{OLD,kind="job"}))
rate(mete_workload_cpu_seconds_total{OLD}[60s]) and on (node, workload) mete_workload_info{OLD,kind="job"}
rate(mete_workload_energy_joules_total{OLD}[60s]) / on (node, workload) group_left () ~rate(mete_workload_cpu_seconds_total{OLD}[60s])
sum by (node) (rate(mete_workload_energy_joules_total{OLD}[60s])) / on (node) sum by (node) (~rate(mete_workload_cpu_seconds_total{OLD}[60s]))
rate(mete_workload_cpu_seconds_total{OLD}[60s]) / on (node) group_left () sum by (node) (~rate(mete_workload_cpu_seconds_total{OLD}[60s]))
rate(mete_workload_cpu_seconds_total{OLD}[30s]) - ~rate(mete_workload_cpu_seconds_total{OLD}[30s] offset 30s)
clamp(rate(mete_workload_cpu_seconds_total{OLD}[60s]), 0.1, 0.3)
sqrt(rate(mete_workload_cpu_seconds_total{OLD}[60s]))
ceil(rate(mete_workload_cpu_seconds_total{OLD}[60s]) * 10)
100 * sum by (node) (rate(mete_workload_cpu_seconds_total{OLD}[60s])) / 2
sum(increase(mete_workload_energy_joules_total{OLD}[60s])) / 3.6e6 * 0.3
max_over_time(sum by (node) (rate(mete_workload_cpu_seconds_total{OLD}[30s]))[30s:3s])
avg_over_time(rate(mete_workload_cpu_seconds_total{OLD}[30s])[30s:5s])
min_over_time(sum(rate(mete_workload_energy_joules_total{OLD}[30s]))[30s:3s])
quantile_over_time(0.9, sum by (node) (rate(mete_workload_cpu_seconds_total{OLD}[30s]))[30s:3s])
sum_over_time(sum by (domain) (rate(mete_workload_energy_joules_total{OLD}[30s]))[30s:10s])
`
