import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Pattern;
import java.util.zip.Deflater;

/** Allocates in native code below interpreted and compiled code: "ready", a line, that many rounds, "done". */
class Load {
    interface Shape {
        double area(int n);
    }

    static class Square implements Shape {
        public double area(int n) {
            return n * n;
        }
    }

    static class Circle implements Shape {
        public double area(int n) {
            return 3.14 * n * n;
        }
    }

    static long round(int number, Shape[] shapes) {
        Map<String, Integer> map = new HashMap<>();
        long sum = 0;
        for (int i = 0; i < 500; i++) {
            map.put("key " + i + number, i);
            sum += (long) shapes[i & 1].area(i);
        }
        Deflater deflater = new Deflater();
        deflater.setInput(map.toString().getBytes());
        deflater.finish();
        sum += deflater.deflate(new byte[1 << 16]);
        deflater.end();
        sum += Pattern.compile("a(b|c)*" + number).matcher("abcbc").groupCount();
        return sum + ByteBuffer.allocateDirect(128).putInt(3).position();
    }

    public static void main(String[] arguments) throws Exception {
        Shape[] shapes = { new Square(), new Circle() };
        System.out.println("ready");
        System.in.read();
        long sum = 0;
        for (int number = 0; number < Integer.parseInt(arguments[0]); number++) {
            sum += round(number, shapes);
        }
        System.out.println(sum == 0 ? "nothing" : "done");
        System.in.read();
    }
}
