import os,pty,time,signal,sys,shutil
shutil.rmtree("wd2",ignore_errors=True); os.mkdir("wd2"); open("wd2/f","w").write("1\n")
T=sys.argv[1]
pid,fd=pty.fork()
if pid==0: os.execv(T,[T,"exec","--workdir","wd2","--review","--","sh","-c","echo 2 > f"])
out=b""
import select
end=time.time()+20
while time.time()<end:
    r,_,_=select.select([fd],[],[],0.5)
    if r:
        try: d=os.read(fd,4096)
        except OSError: break
        out+=d
        if b"?" in d: break
time.sleep(0.3); t=time.time(); os.write(fd,b"\x03") if sys.argv[2]=="c" else os.kill(pid,signal.SIGINT)
while time.time()-t<10:
    p,st=os.waitpid(pid,os.WNOHANG)
    if p: print("ended after %.2f s, status %s"%(time.time()-t, os.waitstatus_to_exitcode(st))); break
    time.sleep(.02)
else: print("HANGS"); os.kill(pid,9)
try: out+=os.read(fd,4096)
except OSError: pass
print(out.decode()); print("f=",open("wd2/f").read())
