package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// ticksPerSecond is the kernel's unit in /proc: USER_HZ, 100 on every architecture that Linux has it for.
const ticksPerSecond = 100

// usage is processor time so far, in seconds: of the servers, of each of their threads, and of this process.
type usage struct {
	servers, client float64
	threads         map[string]float64
}

func processorSeconds(statFile string) float64 {
	text, err := os.ReadFile(statFile)
	if err != nil {
		return 0 // a thread may have ended
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / ticksPerSecond
}

// usageNow reads the processor time of the servers of -pids and of this process.
func usageNow(o *options) usage {
	var own syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &own)
	u := usage{client: float64(own.Utime.Nano()+own.Stime.Nano()) / 1e9, threads: map[string]float64{}}
	for pid := range strings.SplitSeq(o.pids, ",") {
		if pid == "" {
			continue
		}
		u.servers += processorSeconds("/proc/" + pid + "/stat")
		tasks, _ := os.ReadDir("/proc/" + pid + "/task")
		for _, task := range tasks {
			u.threads[task.Name()] = processorSeconds("/proc/" + pid + "/task/" + task.Name() + "/stat")
		}
	}
	return u
}

// addUsage puts the processor time since `before` into a result; Seconds is set.
func (r *result) addUsage(before, after usage) {
	r.ServerS, r.ClientS = after.servers-before.servers, after.client-before.client
	for thread, used := range after.threads {
		r.BusiestThread = max(r.BusiestThread, (used-before.threads[thread])/r.Seconds)
	}
}
