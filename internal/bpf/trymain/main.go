package main
import ("fmt";"os";"time";"strings";"runtime/debug";"runtime/pprof";"golang.org/x/sys/unix";"mete.dev/mete/internal/bpf")
func st(s string){ b,_:=os.ReadFile("/proc/self/status"); for _,l:=range strings.Split(string(b),"\n"){ if strings.HasPrefix(l,"VmHWM")||strings.HasPrefix(l,"VmRSS")||strings.HasPrefix(l,"RssFile")||strings.HasPrefix(l,"RssAnon")||strings.HasPrefix(l,"RssShmem"){ s+=" "+strings.Join(strings.Fields(l)[:2],"") } }; fmt.Println(s)}
func main(){
 st("start")
 cfg:=bpf.Default()
 if len(os.Args)>1&&os.Args[1]=="run"{ cfg.Parts=bpf.Forks|bpf.Disk|bpf.Net; cfg.Groups=64 }
 if len(os.Args)>1&&os.Args[1]=="ev"{ cfg.Parts=bpf.Events}
 if len(os.Args)>2{ f,_:=os.Create(os.Args[2]); pprof.StartCPUProfile(f); defer pprof.StopCPUProfile() }
 n:=1; if len(os.Args)>2{n=100}
 for range n { 
 t0:=time.Now(); var a,b unix.Rusage; unix.Getrusage(0,&a)
 k,err:=bpf.Open(cfg)
 unix.Getrusage(0,&b)
 if n==1 {fmt.Println("open", time.Since(t0), time.Duration(b.Utime.Nano()-a.Utime.Nano()), time.Duration(b.Stime.Nano()-a.Stime.Nano()), err)}
 if n==1 {st("open")
 debug.FreeOSMemory(); st("freed")}
 t0=time.Now(); unix.Getrusage(0,&a)
 k.Close()
 unix.Getrusage(0,&b)
 if n==1 {fmt.Println("close", time.Since(t0), time.Duration(b.Utime.Nano()-a.Utime.Nano()), time.Duration(b.Stime.Nano()-a.Stime.Nano()), err)}
 }
}
