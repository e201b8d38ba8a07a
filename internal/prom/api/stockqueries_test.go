package api_test

// stockQueries are typical queries about workloads and nodes, one per line; NOW is a time
// in seconds. They avoid two differences between Prometheus 2 and 3: whether a range
// includes a sample at its start (ranges of subqueries, which have times at whole minutes,
// therefore start between those), and how far rate extrapolates a counter that starts
// near zero within the range.
const stockQueries = `
mete_workload_cpu_seconds_total
mete_workload_info
mete_workload_info{namespace="shop"}
mete_workload_info{namespace=~"sh.+|batch",name!="app-0"}
{__name__=~"mete_node_.+"}
mete_node_cpus
sum(mete_node_cpus)
sum by (cluster) (mete_node_cpus)
rate(mete_workload_cpu_seconds_total[1m])
rate(mete_workload_cpu_seconds_total[90s])
rate(mete_workload_cpu_seconds_total[5m])
irate(mete_workload_cpu_seconds_total[2m])
increase(mete_workload_cpu_seconds_total[10m])
delta(mete_workload_cpu_seconds_total[10m])
idelta(mete_workload_cpu_seconds_total[1m])
sum(rate(mete_workload_cpu_seconds_total[2m]))
sum by (node) (rate(mete_workload_cpu_seconds_total[2m]))
sum by (cluster, node) (rate(mete_workload_energy_joules_total[2m]))
sum by (domain) (rate(mete_workload_energy_joules_total[2m]))
sum without (workload) (rate(mete_workload_energy_joules_total{domain="package"}[2m]))
sum without (domain) (increase(mete_workload_energy_joules_total[15m]))
avg by (node) (rate(mete_workload_cpu_seconds_total[2m]))
min by (node) (rate(mete_workload_cpu_seconds_total[2m]))
max by (node) (rate(mete_workload_cpu_seconds_total[2m]))
count by (node) (mete_workload_cpu_seconds_total)
group by (node) (mete_workload_cpu_seconds_total)
stddev by (node) (rate(mete_workload_cpu_seconds_total[2m]))
stdvar by (cluster) (rate(mete_workload_cpu_seconds_total[2m]))
quantile(0.5, rate(mete_workload_cpu_seconds_total[2m]))
quantile by (node) (0.95, rate(mete_workload_network_receive_bytes_total[2m]) or rate(mete_workload_cpu_seconds_total[2m]))
topk(3, rate(mete_workload_cpu_seconds_total[5m]))
topk by (node) (1, rate(mete_workload_cpu_seconds_total[5m]))
bottomk(2, rate(mete_workload_cpu_seconds_total[5m]))
topk(5, sum by (workload) (rate(mete_workload_energy_joules_total[3m])))
count_values("cpus", mete_node_cpus)
sum by (namespace) (rate(mete_workload_cpu_seconds_total[2m]) * on (cluster, node, workload) group_left (namespace) mete_workload_info)
sum by (namespace, cluster) (rate(mete_workload_cpu_seconds_total[2m]) * on (cluster, node, workload) group_left (namespace) mete_workload_info)
topk(2, sum by (pod) (rate(mete_workload_energy_joules_total[2m]) * on (cluster, node, workload) group_left (pod) mete_workload_info))
rate(mete_workload_cpu_seconds_total[2m]) * on (cluster, node, workload) group_left (name, namespace, pod) mete_workload_info{namespace="search"}
mete_workload_info * on (cluster, node, workload) group_right (name) mete_workload_energy_joules_total
sum by (node) (rate(mete_workload_cpu_seconds_total[2m])) / on (node) group_left () mete_node_cpus
sum by (node) (rate(mete_workload_cpu_seconds_total[2m])) / on (node) sum by (node) (mete_node_cpus)
100 * sum by (node) (rate(mete_workload_cpu_seconds_total[2m])) / ignoring (cluster) sum by (node) (mete_node_cpus)
rate(mete_workload_cpu_seconds_total[2m]) > 0.2
rate(mete_workload_cpu_seconds_total[2m]) > bool 0.2
mete_workload_cpu_seconds_total and on (workload) mete_workload_info{namespace="shop"}
mete_workload_cpu_seconds_total unless on (workload) mete_workload_info{namespace="shop"}
mete_workload_cpu_seconds_total{node="host-a"} or mete_workload_cpu_seconds_total{node="host-c"}
mete_workload_cpu_seconds_total offset 10m
rate(mete_workload_cpu_seconds_total[2m] offset 5m)
rate(mete_workload_cpu_seconds_total[2m]) - rate(mete_workload_cpu_seconds_total[2m] offset 20m)
mete_workload_cpu_seconds_total offset -5m
mete_workload_cpu_seconds_total @ NOW
rate(mete_workload_cpu_seconds_total[5m] @ NOW)
mete_workload_cpu_seconds_total - mete_workload_cpu_seconds_total @ NOW
mete_workload_cpu_seconds_total @ start()
sum(mete_workload_cpu_seconds_total @ end())
topk(2, mete_workload_cpu_seconds_total @ NOW offset 3m)
max_over_time(rate(mete_workload_cpu_seconds_total[90s])[10m:1m])
avg_over_time(rate(mete_workload_cpu_seconds_total[85s])[10m:30s])
min_over_time(sum by (node) (rate(mete_workload_cpu_seconds_total[90s]))[15m:1m])
quantile_over_time(0.9, sum(rate(mete_workload_cpu_seconds_total[90s]))[20m:1m])
sum_over_time(sum by (node) (mete_node_cpus)[10m:1m])
max_over_time(sum(rate(mete_workload_energy_joules_total[90s]))[30m:2m] offset 10m)
max_over_time(max_over_time(rate(mete_workload_cpu_seconds_total[90s])[270s:1m])[10m:5m])
delta(sum(mete_workload_cpu_seconds_total{node="host-a",workload!="x"})[10m:1m])
count_over_time(mete_workload_cpu_seconds_total[10m])
changes(mete_workload_cpu_seconds_total[10m])
resets(mete_workload_cpu_seconds_total[10m])
last_over_time(mete_workload_cpu_seconds_total[3m])
first_over_time_is_not_there(mete_workload_cpu_seconds_total[3m])
avg_over_time(mete_node_memory_bytes[10m])
min_over_time(mete_node_power_watts[10m])
max_over_time(mete_node_cpu_cores[10m])
sum_over_time(mete_node_cpu_cores{part="workloads"}[10m])
stddev_over_time(mete_node_cpu_cores{part="workloads"}[10m])
stdvar_over_time(mete_node_cpu_cores{part="workloads"}[10m])
quantile_over_time(0.25, mete_node_cpu_cores{part="workloads"}[10m])
present_over_time(mete_workload_cpu_seconds_total[5m])
absent(mete_workload_cpu_seconds_total{node="nowhere"})
absent(mete_workload_cpu_seconds_total)
absent_over_time(mete_workload_cpu_seconds_total{node="nowhere"}[5m])
deriv(mete_workload_cpu_seconds_total[10m])
predict_linear(mete_workload_cpu_seconds_total[10m], 3600)
mete_node_cpu_cores
sum by (part) (mete_node_cpu_cores)
mete_node_power_watts{part!="idle"}
sum(mete_node_power_watts)
mete_node_memory_held_bytes
abs(delta(mete_node_cpu_cores{part="workloads"}[5m]))
ceil(rate(mete_workload_cpu_seconds_total[2m]) * 10)
floor(rate(mete_workload_cpu_seconds_total[2m]) * 10)
round(rate(mete_workload_cpu_seconds_total[2m]), 0.01)
clamp(rate(mete_workload_cpu_seconds_total[2m]), 0.1, 0.3)
clamp_max(rate(mete_workload_cpu_seconds_total[2m]), 0.2)
sqrt(rate(mete_workload_cpu_seconds_total[2m]))
exp(rate(mete_workload_cpu_seconds_total[2m]))
ln(mete_workload_cpu_seconds_total)
log2(mete_workload_cpu_seconds_total)
sgn(delta(mete_node_cpu_cores{part="workloads"}[5m]))
timestamp(mete_workload_cpu_seconds_total)
time() - timestamp(mete_node_cpus)
vector(1)
time()
scalar(sum(mete_node_cpus))
sort(sum by (node) (rate(mete_workload_cpu_seconds_total[2m])))
sort_desc(sum by (node) (rate(mete_workload_cpu_seconds_total[2m])))
hour(timestamp(mete_node_cpus))
day_of_week()
label_replace(sum by (node) (mete_node_cpus), "short", "$1", "node", "host-(.+)")
label_join(sum by (cluster, node) (mete_node_cpus), "both", "/", "cluster", "node")
sum by (short) (label_replace(rate(mete_workload_cpu_seconds_total[2m]), "short", "$1", "node", "host-(.).*"))
sum(rate(mete_workload_cpu_seconds_total[2m])) by (node) * 3600 * 0.25
(sum(increase(mete_workload_energy_joules_total[1h])) / 3.6e6) * 0.3
-sum(mete_node_cpus) ^ 2 % 7
sum(mete_node_cpus) atan2 sum(mete_node_memory_bytes + 1)
mete_workload_cpu_seconds_total[1m]
rate(mete_workload_cpu_seconds_total)
sum(
mete_node_cpus / on (cluster) mete_workload_info
`
